"""Which store of claims an address names."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.claims.port import ClaimStore

_LOCAL = "local:"


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Where claims are kept, as a worker is told it.

    :param url: redis://HOST:PORT/DATABASE, redis-sentinel://HOST:PORT,HOST:PORT/MASTER/DATABASE,
        redis-cluster://HOST:PORT,HOST:PORT, the same three with rediss for TLS, each with USER@
        before the first host if need be, or local:DIRECTORY.
    :param ca_file: certificates in PEM that sign those of the servers; "" for the machine's own.
    """

    url: str
    password: str = field(default="", repr=False)
    ca_file: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return self.url.startswith(_LOCAL)


def open_store(access: StoreAccess) -> ClaimStore:
    """A store for one thread. Nothing is asked of a server before the first call.

    :raises ConfigurationError: the address is of none.
    :raises StoreRefusedError: it cannot be used as it is.
    """
    if access.is_local:
        from sluice.claims.local import LocalStore

        return LocalStore(access.url.removeprefix(_LOCAL))
    from sluice.claims.masters import address_of
    from sluice.claims.redis import RedisStore

    return RedisStore(address_of(access.url, access.password, access.ca_file))
