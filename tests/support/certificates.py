"""An authority and what it signs, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Certificates in PEM, in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(
            *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate),
        )

    def sign(self, name: str, password: str = "") -> tuple[Path, Path]:
        """A certificate for 127.0.0.1, and its key."""
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        secret = ("-passout", f"pass:{password}") if password else ("-nodes",)
        _openssl(
            *("req", "-newkey", "rsa:2048", *secret, "-subj", f"/CN={name}"),
            *("-keyout", key, "-out", request),
        )
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-days", "2", "-extfile", extensions, "-out", certificate),
        )
        return certificate, key


def https_port(port: int, certificate: Path, key: Path, authority: Path) -> str:
    """XML for a server of ClickHouse that wants certificates of its clients."""
    return f"""<https_port>{port}</https_port><openSSL><server>
    <certificateFile>{certificate}</certificateFile><privateKeyFile>{key}</privateKeyFile>
    <caConfig>{authority}</caConfig><loadDefaultCAFile>false</loadDefaultCAFile>
    <verificationMode>strict</verificationMode><cacheSessions>false</cacheSessions>
  </server></openSSL>"""


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
