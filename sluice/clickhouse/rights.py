"""Whether Sluice's user has a right."""

from __future__ import annotations

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerError
from sluice.core.errors import TransientError


def has_right(server: Server, privilege: str, on: str) -> bool | None:
    """Whether this user has a privilege; None where the server cannot say.

    :param privilege: several with commas between them: whether it has all of them.
    :param on: a table, or all tables whose names begin so, as GRANT has it.
    :raises TransientError: it does not answer.
    """
    try:
        said = server.execute(f"CHECK GRANT {privilege} ON {on}").strip()
    except TransientError:
        raise
    except ServerError:
        return None  # an older server has no such statement
    return {"0": False, "1": True}.get(said)
