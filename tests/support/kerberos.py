"""A real key distribution center (Debian's MIT Kerberos), and a broker that takes its tickets."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from sluice.testbed.local.broker import PROPERTIES_VARIABLE, PROXY_VARIABLE
from sluice.testbed.local.children import Child, free_ports
from sluice.testbed.local.running import Broker

USER, SERVICE = "loader@SLUICE.TEST", "kafka/127.0.0.1@SLUICE.TEST"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
_PACKAGES = "krb5-kdc, krb5-admin-server and krb5-user"
_CLIENT = """\
[libdefaults]
default_realm = SLUICE.TEST
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
SLUICE.TEST = {{
  kdc = 127.0.0.1:{port}
}}
"""
_SERVER = """\
[kdcdefaults]
kdc_listen = 127.0.0.1:{port}
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
SLUICE.TEST = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
}}
[logging]
kdc = FILE:{folder}/kdc.log
"""
_ANSWER_SECONDS_MAX = 30.0


class KeyCenter(Child):
    """Of one realm, with a user and the broker's service; each has its keys in a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self.configuration = folder / "krb5.conf"
        self.user_keys, self.service_keys = folder / "user.keytab", folder / "service.keytab"

    @property
    def environment(self) -> dict[str, str]:
        """Of whoever asks it for tickets, and keeps them."""
        return {
            "KRB5_CONFIG": str(self.configuration),
            "KRB5CCNAME": f"FILE:{self.folder}/tickets",
        }

    def start(self) -> None:
        """Make the realm, and answer."""
        if any(shutil.which(name) is None for name in _PROGRAMS):
            pytest.skip(f"needs Debian's packages {_PACKAGES}: scripts/setup-tests")
        self.configuration.write_text(_CLIENT.format(port=self._port))
        profile = self.folder / "kdc.conf"
        profile.write_text(_SERVER.format(port=self._port, folder=self.folder))
        self._profile = {**os.environ, **self.environment, "KRB5_KDC_PROFILE": str(profile)}
        self._run("kdb5_util", "create", "-s", "-r", "SLUICE.TEST", "-P", "planted-master-key")
        for principal, keys in ((USER, self.user_keys), (SERVICE, self.service_keys)):
            self._run("kadmin.local", "addprinc", "-randkey", principal)
            self._run("kadmin.local", "ktadd", "-k", str(keys), principal)
        self.launch(["krb5kdc", "-n"], environment=self._profile)
        until = time.monotonic() + _ANSWER_SECONDS_MAX
        while subprocess.run(
            ["kinit", "-k", "-t", self.user_keys, "-c", f"{self.folder}/tried", USER],
            env=self._profile,
            capture_output=True,
            check=False,
        ).returncode:
            assert time.monotonic() < until, "the key distribution center does not answer"
            time.sleep(0.05)

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self._profile, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


class KerberosBroker(Broker):
    """Its plain listener is the administrator's; at the other one a ticket logs in.

    :param logins: bootstrap.servers of that one.
    """

    def __init__(self, data: Path, center: KeyCenter) -> None:
        super().__init__(data)
        self._center = center
        (self._login_port,) = free_ports(1)
        self.logins = f"127.0.0.1:{self._login_port}"

    @property
    def environment(self) -> dict[str, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        file, listener = self.folder / "kerberos.properties", "listener.name.proxied"
        file.write_text(
            "listener.security.protocol.map="
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT\n"
            f"{listener}.sasl.enabled.mechanisms=GSSAPI\n"
            f"{listener}.sasl.kerberos.service.name=kafka\n"
            f"{listener}.gssapi.sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule "
            f'required useKeyTab=true storeKey=true keyTab="{self._center.service_keys}" '
            f'principal="{SERVICE}";\n'
        )
        return {
            PROXY_VARIABLE: f"{self._login_port}:{self._login_port}",
            PROPERTIES_VARIABLE: str(file),
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self._center.configuration}",
        }

    def login(self) -> dict[str, str]:
        """librdkafka's properties of USER."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.kerberos.principal": USER,
            "sasl.kerberos.keytab": str(self._center.user_keys),
        }
