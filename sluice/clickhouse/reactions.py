"""What to do about each error of a ClickHouse server: the one table, and the typed errors.

The loops look at the kind only (terminal, transient, in doubt); `action` refines how an
attempt is repeated. Kinds are judged for an INSERT: an insert over several ClickHouse
partitions, or with dependent views, is not atomic, so almost every failure that a server
reports may have left rows behind and is in doubt. Terminal does not mean that nothing was
stored either; it means that the identical block can never succeed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError

Kind = Literal["terminal", "transient", "in-doubt"]
Action = Literal["stop", "back-off", "same-block", "same-block-then-next-replica", "next-replica"]


@dataclass(frozen=True, slots=True)
class Reaction:
    """How a loader answers one error.

    :param alert: a person should hear of it when it persists.
    """

    kind: Kind
    action: Action
    name: str
    hint: str
    alert: bool = False


@dataclass(frozen=True, slots=True)
class ServerErrorFacts:
    """What an error knows besides its message.

    :param code: ClickHouse's error code; 0 where no server answered with one.
    :param name: ClickHouse's name for the code, or the name of the network failure.
    :param url: the server, without user and password.
    """

    code: int
    name: str
    url: str
    action: Action
    alert: bool = False


class ServerError(SluiceError):
    """Base of everything that goes wrong between Sluice and a ClickHouse server."""

    def __init__(self, message: str, hint: str, facts: ServerErrorFacts) -> None:
        super().__init__(message, hint)
        self.code = facts.code
        self.name = facts.name
        self.url = facts.url
        self.action = facts.action
        self.alert = facts.alert


def name_of(error: Exception) -> str:
    """What kind of error it is: ClickHouse's name for it, or Sluice's. No words, which may name
    values."""
    return error.name if isinstance(error, ServerError) else type(error).__name__


class TerminalServerError(ServerError, TerminalError):
    """The server refuses, and will refuse the identical request again."""


class TransientServerError(ServerError, TransientError):
    """The server did nothing; the same request may be repeated later."""


class InDoubtServerError(ServerError, InDoubtError):
    """The server may have done it; only the identical block may be repeated."""


_SAME = "The same block is sent again; if it persists, read the server's log."
_QUORUM = (
    "`sluice quorum` says which replica lacks which part, and why: bring it back. "
    "Do not lower the quorum and do not drop the partition."
)
NETWORK_HINT = "Check that the server runs and that the network between it and the worker holds."
_KEEPER = "Check ZooKeeper or Keeper and the server's session with it (system.replicas)."
_LOAD = "The server is short of a resource; it is asked again later. Look at its memory and disk."
_DISK = "Make room on that server's disk; its blocks go to other replicas meanwhile, if there are."
_SCHEMA = "Compare the table with what the pipeline sends (`sluice doctor`), then fix either."
_LOGIN = (
    "Correct `user` and `password`, or `token`, in [clickhouse], or the user's rights on the "
    "server."
)
_NO_TOKENS = (
    "This server takes no tokens; ClickHouse Cloud does, and builds that say so. Write `user` and "
    "`password` in [clickhouse] instead of `token`."
)
_RIGHTS = (
    "GRANT what it names to Sluice's user; `sluice doctor` names each right that is missing, and "
    "`--grants` prints all of them."
)
_BUG = "This is a bug of the server or of Sluice: report it, then run `sluice resolve`."


def _in_doubt(name: str, hint: str = _SAME, action: Action = "same-block") -> Reaction:
    return Reaction("in-doubt", action, name, hint)


def _terminal(name: str, hint: str = _SCHEMA) -> Reaction:
    return Reaction("terminal", "stop", name, hint)


#: A code whose text decides stands in TEXT_REACTIONS as well, which is asked first.
REACTIONS: dict[int, Reaction] = {
    319: _in_doubt("UNKNOWN_STATUS_OF_INSERT", _QUORUM),
    286: Reaction("in-doubt", "back-off", "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE", _QUORUM, True),
    285: Reaction("in-doubt", "back-off", "TOO_FEW_LIVE_REPLICAS", _QUORUM, True),
    159: _in_doubt("TIMEOUT_EXCEEDED"),
    394: _in_doubt("QUERY_WAS_CANCELLED"),
    209: _in_doubt("SOCKET_TIMEOUT", NETWORK_HINT, "same-block-then-next-replica"),
    210: _in_doubt("NETWORK_ERROR", NETWORK_HINT, "same-block-then-next-replica"),
    32: _in_doubt("ATTEMPT_TO_READ_AFTER_EOF", NETWORK_HINT, "same-block-then-next-replica"),
    999: _in_doubt("KEEPER_EXCEPTION", _KEEPER),
    244: _in_doubt("UNEXPECTED_ZOOKEEPER_ERROR", _KEEPER),
    225: _in_doubt("NO_ZOOKEEPER", _KEEPER),
    242: _in_doubt("TABLE_IS_READ_ONLY", _KEEPER, "next-replica"),
    164: _in_doubt("READONLY", _KEEPER, "next-replica"),
    252: Reaction(
        "in-doubt",
        "back-off",
        "TOO_MANY_PARTS",
        "Merges fall behind: raise max_messages or max_delay, or give the server more CPU.",
        True,
    ),
    241: _in_doubt("MEMORY_LIMIT_EXCEEDED", _LOAD, "back-off"),
    202: Reaction("transient", "back-off", "TOO_MANY_SIMULTANEOUS_QUERIES", _LOAD),
    203: _in_doubt("NO_FREE_CONNECTION", _LOAD, "back-off"),
    # A disk belongs to one replica; others may have room.
    243: Reaction("in-doubt", "next-replica", "NOT_ENOUGH_SPACE", _DISK, True),
    # A full disk too, on servers that do not reserve what a block needs [measured on 18.16].
    75: Reaction("in-doubt", "next-replica", "CANNOT_WRITE_TO_FILE_DESCRIPTOR", _DISK, True),
    236: _in_doubt("ABORTED"),
    235: _in_doubt("DUPLICATE_DATA_PART"),
    384: _in_doubt("PART_IS_TEMPORARILY_LOCKED"),
    279: _in_doubt("ALL_CONNECTION_TRIES_FAILED", NETWORK_HINT, "next-replica"),
    16: _terminal("NO_SUCH_COLUMN_IN_TABLE"),
    53: _terminal("TYPE_MISMATCH"),
    60: _terminal("UNKNOWN_TABLE"),
    62: _terminal("SYNTAX_ERROR"),
    115: _terminal("UNKNOWN_SETTING", "Settings are sent by capability: run `sluice doctor`."),
    192: _terminal("UNKNOWN_USER", _LOGIN),
    193: _terminal("WRONG_PASSWORD", _LOGIN),
    497: _terminal("ACCESS_DENIED", _RIGHTS),
    516: _terminal("AUTHENTICATION_FAILED", _LOGIN),
    49: Reaction("in-doubt", "stop", "LOGICAL_ERROR", _BUG, True),
    # Siblings of the deterministic refusals above, by the same reason.
    10: _terminal("NOT_FOUND_COLUMN_IN_BLOCK"),
    20: _terminal("NUMBER_OF_COLUMNS_DOESNT_MATCH"),
    46: _terminal("UNKNOWN_FUNCTION"),
    47: _terminal("UNKNOWN_IDENTIFIER"),
    50: _terminal("UNKNOWN_TYPE"),
    81: _terminal("UNKNOWN_DATABASE"),
    194: _terminal("REQUIRED_PASSWORD", _LOGIN),
    195: _terminal("IP_ADDRESS_NOT_ALLOWED", _LOGIN),
    291: _terminal("DATABASE_ACCESS_DENIED", _LOGIN),
    349: _terminal("CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"),
    368: _terminal("BAD_TYPE_OF_FIELD"),
    452: _terminal("SETTING_CONSTRAINT_VIOLATION", "Loosen that constraint for Sluice's user."),
    469: _terminal("VIOLATED_CONSTRAINT"),
}

#: Refusals of a block for what the table is: an ALTER may have passed since it was looked at.
STRUCTURE_CODES = frozenset({8, 10, 16, 20, 44, 47, 50, 53, 70, 368})

#: Refusals of a statement before anything of it is executed. Where a view reads the table, the
#: refusal may be the view's.
ANALYSIS_CODES = frozenset({16, 60, 62, 81, 115, 192, 193, 194, 195, 291, 452, 497, 516})

#: What an expression says of a value: of a view, a default, a constraint. The block arrived whole,
#: in the columns' types, so the same block gets the same answer; but a view may ask a dictionary,
#: or a table, which changes: so the answer counts when it comes again.
DATA_CODES = frozenset({6, 25, 26, 27, 33, 36, 38, 41, 43, 69, 70, 72, 117, 128, 131, 153, 190}) | {
    *(321, 376, 395, 407, 441, 467, 675, 676, 691),
}

#: The server has trouble with ZooKeeper or Keeper; other replicas need not.
KEEPER_CODES = frozenset({225, 242, 244, 999})

_DISK_CODES = frozenset({75, 243})

#: Answers to an insert after which a table that is not replicated either has a part and knows it,
#: or knows nothing of it: they are given before a part is written down, or while data arrive.
_BEFORE_PARTS_CODES = frozenset({32, 159, 164, 202, 203, 209, 210, 242, 252, 279, 285, 286, 394})

#: Who was at work when it failed. Parts are written down by what is called a sink.
_WORKER = re.compile(r"while executing '?(\w+)", re.IGNORECASE)

#: Codes that mean two things: (code, pattern in the text, reaction); the first match wins.
TEXT_REACTIONS: tuple[tuple[int, re.Pattern[str], Reaction], ...] = (
    *(
        (code, re.compile(words), _terminal("AUTHENTICATION_FAILED", _NO_TOKENS))
        for code, words in (
            (516, "'Bearer' HTTP Authorization scheme is not supported"),
            (1000, "Basic authentication expected"),  # of 18.16
        )
    ),
    (
        252,
        re.compile(r"too many partitions", re.IGNORECASE),
        _terminal(
            "TOO_MANY_PARTS",
            "Raise max_partitions_per_insert_block for Sluice's user, or lower max_messages.",
        ),
    ),
    (
        164,
        re.compile(r"read-?only (mode|user|setting)|can(not|'t) (execute|modify)", re.IGNORECASE),
        _terminal("READONLY", _LOGIN),
    ),
)

_CODE = re.compile(r"Code:\s*(\d+)[.,]")
_MESSAGE_CHARACTERS_MAX = 1000


def reaction_to(code: int, text: str = "") -> Reaction:
    """The reaction to a code; an unlisted code is in doubt.

    :param text: the server's text, for codes that mean two things.
    """
    for listed, pattern, reaction in TEXT_REACTIONS:
        if code == listed and pattern.search(text):
            return reaction
    unlisted = Reaction("in-doubt", "same-block", f"ERROR_{code}", _SAME, True)
    return REACTIONS.get(code, unlisted)


def data_refusal(error: ServerError, answers: int, more: str) -> TerminalServerError:
    """What a server said of a block's values, so often that it will not say anything else.

    :param more: what is known of the table, in words.
    """
    facts = ServerErrorFacts(error.code, error.name, error.url, "stop")
    return TerminalServerError(
        f"{error.message}; the server answered the same block {answers} times like this; {more}",
        "An expression behind the table, as of a materialized view, a DEFAULT or a CONSTRAINT, "
        "fails for a value of this range: fix it (toDateTimeOrNull instead of toDateTime), or "
        "drop the view; then start the driver again, and the same block is sent again. on_error = "
        '"park" lets the other tables of the topic go on.',
        facts,
    )


def is_data_refusal(error: SluiceError) -> bool:
    """Whether it is one of `data_refusal`."""
    return isinstance(error, TerminalServerError) and error.code in DATA_CODES


def may_still_land(error: SluiceError) -> bool:
    """Whether a server may store, after this error, what it was sent. One that says that it has no
    room on its disk is done with it, although some of it may be stored."""
    if isinstance(error, ServerError) and error.code in _DISK_CODES:
        return False
    return isinstance(error, InDoubtError)


def may_lack_part(error: SluiceError) -> bool:
    """Whether, after this answer, a table that is not replicated may know a block and not have it:
    the server writes down that it knows the block, and then gives the part its name. A rename that
    fails leaves the first [measured: code 1001 for an EIO]. An insert without an answer is known
    by its server's process, see `core.server_runs`."""
    if not isinstance(error, InDoubtServerError) or error.code in (0, *_BEFORE_PARTS_CODES):
        return False
    workers = _WORKER.findall(error.message)
    return not workers or any("sink" in worker.lower() for worker in workers)


def is_too_many_partitions(error: SluiceError) -> bool:
    """Whether a block, or what a view made of it, has more ClickHouse partitions than allowed."""
    return isinstance(error, TerminalServerError) and error.code == 252


def code_in_text(text: str) -> int | None:
    """The first `Code: N,` of a text: the outermost error (18.16 nests a cause in it)."""
    match = _CODE.search(text)
    return int(match.group(1)) if match else None


def error_from_reply(
    *, url: str, what: str, status: int, header_code: str | None, text: str, read_only: bool
) -> ServerError:
    """The typed error for a reply that is not a success.

    :param what: the operation and its object, e.g. "insert into shop.orders".
    :param header_code: X-ClickHouse-Exception-Code; 18.16 does not send it.
    :param text: the body, without secrets.
    :param read_only: the request changes nothing, so "in doubt" becomes transient.
    """
    code = int(header_code) if header_code and header_code.isdigit() else code_in_text(text)
    short = " ".join(text.split())[:_MESSAGE_CHARACTERS_MAX]
    if code is None:
        return _foreign_reply(url, what, status, short, read_only)
    reaction = reaction_to(code, text)
    message = f"{what} on {url}: {reaction.name} ({code}): {short}"
    return build_error(reaction, code, url, message, read_only)


def _foreign_reply(url: str, what: str, status: int, text: str, read_only: bool) -> ServerError:
    """A reply without any ClickHouse code: a proxy, or no ClickHouse at all."""
    refused = 300 <= status < 500 and status not in (408, 429)
    hint = "Check the URL: what answers there is a proxy, or no ClickHouse HTTP port."
    name = f"HTTP_{status}"
    reaction = _terminal(name, hint) if refused else _in_doubt(name, hint)
    message = f"{what} on {url}: HTTP status {status} without a ClickHouse error: {text[:300]}"
    return build_error(reaction, 0, url, message, read_only)


def build_error(
    reaction: Reaction, code: int, url: str, message: str, read_only: bool = False
) -> ServerError:
    """The error of the reaction's kind. A read that may be repeated is never in doubt."""
    facts = ServerErrorFacts(code, reaction.name, url, reaction.action, reaction.alert)
    kinds: dict[Kind, type[ServerError]] = {
        "terminal": TerminalServerError,
        "transient": TransientServerError,
        "in-doubt": TransientServerError if read_only else InDoubtServerError,
    }
    return kinds[reaction.kind](message, reaction.hint, facts)


def nothing_sent(url: str, what: str, name: str, why: str, hint: str = NETWORK_HINT) -> ServerError:
    """A failure before the first byte of the request left: transient."""
    reaction = Reaction("transient", "next-replica", name, hint)
    return build_error(reaction, 0, url, f"{what} on {url}: nothing was sent: {why}")


def reply_lost(url: str, what: str, name: str, why: str, read_only: bool) -> ServerError:
    """A failure after the request began to leave: in doubt, transient for a read."""
    reaction = _in_doubt(name, NETWORK_HINT, "same-block-then-next-replica")
    return build_error(reaction, 0, url, f"{what} on {url}: no answer: {why}", read_only)


#: See `other_query_id`.
QUERY_ID_REPLACED = "QUERY_ID_REPLACED"


def other_query_id(url: str, what: str, sent: str, ran_as: str) -> ServerError:
    """A statement has another query id at the server than it was sent with: whether an earlier
    attempt still runs could not be found out (R11).

    :param ran_as: the id that it had there; "": nobody knows.
    """
    known = f"ran there as {ran_as}" if ran_as else "the server does not list it"
    reaction = _terminal(
        QUERY_ID_REPLACED,
        "Name the server by its own URL, or let the proxy before it pass query_id and all settings "
        "on as they come (chproxy replaces the one and drops the others).",
    )
    message = f"{what} on {url}: it was sent with the query_id {sent}, and {known}: "
    return build_error(reaction, 0, url, f"{message}a proxy replaces query_id")


def while_it_changes(error: ServerError, source: str, why: str) -> ServerError:
    """A refused password that may be on its way, to the server or into its source: transient.

    :param why: the source could not be read; "": it could.
    """
    hint = f"The password is read from {source} again; correct it there, or on the server."
    if why:
        hint = f"{hint} Now {why}."
    reaction = Reaction("transient", "back-off", error.name, hint)
    return build_error(reaction, error.code, error.url, error.message)
