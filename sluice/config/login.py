"""How servers of ClickHouse let Sluice in: a password's file, certificates."""

from __future__ import annotations

from pathlib import Path

from sluice.config.model import CertificatesConfiguration, ShardConfiguration
from sluice.config.secret import Secret
from sluice.config.section import Section
from sluice.config.values import a_secret, a_text


def read_password_file(section: Section, folder: Path) -> str:
    """The file that holds the password; "" where there is none.

    :param folder: what a relative name starts from.
    """
    name = section.optional("password_file", a_text, "")
    if name and section.has("password"):
        section.refuse("password_file", "stands beside password; keep one of them")
    return _absolute(name, folder)


def read_certificates(
    section: Section, shards: tuple[ShardConfiguration, ...], folder: Path
) -> CertificatesConfiguration:
    """The table `tls`.

    :param folder: what a relative name starts from.
    """
    if not section.has("tls"):
        return CertificatesConfiguration()
    tls = section.table("tls")
    read = CertificatesConfiguration(
        authority=_absolute(tls.optional("ca", a_text, ""), folder),
        certificate=_absolute(tls.optional("certificate", a_text, ""), folder),
        key=_absolute(tls.optional("key", a_text, ""), folder),
        key_password=tls.optional("key_password", a_secret, Secret("")),
    )
    if not read.certificate:
        for name in ("key", "key_password"):
            if tls.has(name):
                tls.refuse(name, "is of no use without a certificate")
    urls = [url for shard in shards for url in shard.replicas]
    if urls and not any(url.startswith("https:") for url in urls):
        section.refuse("tls", "is of no use: no URL in shards begins with https")
    tls.finish()
    return read


def _absolute(name: str, folder: Path) -> str:
    return str(folder / name) if name else ""
