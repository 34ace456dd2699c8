"""Every code has one reaction; errors are typed, carry their facts, and survive pickling."""

from __future__ import annotations

import pickle

import chdb
import pytest

from sluice.clickhouse.reactions import (
    ANALYSIS_CODES,
    DATA_CODES,
    KEEPER_CODES,
    REACTIONS,
    STRUCTURE_CODES,
    InDoubtServerError,
    ServerError,
    TerminalServerError,
    TransientServerError,
    code_in_text,
    error_from_reply,
    may_lack_part,
    may_still_land,
    nothing_sent,
    reaction_to,
    reply_lost,
)
from sluice.core.errors import InDoubtError, TerminalError, TransientError

TERMINAL = [16, 53, 60, 62, 115, 192, 193, 497, 516]
SAME_BLOCK = [319, 159, 394, 999, 244, 225, 236, 235, 384]
THEN_NEXT = [209, 210, 32]
NEXT_REPLICA = [242, 279, 243, 75]
BACK_OFF_IN_DOUBT = [286, 285, 241, 203]

#: What an expression of the table, or of a view, says of a value.
VALUE_NAMES = [
    "ARGUMENT_OUT_OF_BOUND",
    "BAD_ARGUMENTS",
    "CANNOT_CONVERT_TYPE",
    "CANNOT_PARSE_BOOL",
    "CANNOT_PARSE_DATE",
    "CANNOT_PARSE_DATETIME",
    "CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING",
    "CANNOT_PARSE_ESCAPE_SEQUENCE",
    "CANNOT_PARSE_INPUT_ASSERTION_FAILED",
    "CANNOT_PARSE_IPV4",
    "CANNOT_PARSE_IPV6",
    "CANNOT_PARSE_NUMBER",
    "CANNOT_PARSE_QUOTED_STRING",
    "CANNOT_PARSE_TEXT",
    "CANNOT_PARSE_UUID",
    "CANNOT_READ_ALL_DATA",
    "DECIMAL_OVERFLOW",
    "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO",
    "ILLEGAL_DIVISION",
    "ILLEGAL_TYPE_OF_ARGUMENT",
    "INCORRECT_DATA",
    "SIZES_OF_ARRAYS_DONT_MATCH",
    "TOO_LARGE_ARRAY_SIZE",
    "TOO_LARGE_STRING_SIZE",
    "UNKNOWN_ELEMENT_OF_ENUM",
    "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
]


def error(code: int, text: str = "", read_only: bool = False, status: int = 500) -> ServerError:
    return error_from_reply(
        url="http://h:1",
        what="insert into shop.orders",
        status=status,
        header_code=None,
        text=f"Code: {code}, e.displayText() = DB::Exception: {text}",
        read_only=read_only,
    )


@pytest.mark.parametrize("code", TERMINAL)
def test_deterministic_refusals_are_terminal(code: int) -> None:
    assert isinstance(error(code), TerminalError)
    assert reaction_to(code).action == "stop"


@pytest.mark.parametrize("code", SAME_BLOCK)
def test_same_block_again(code: int) -> None:
    assert isinstance(error(code), InDoubtError)
    assert reaction_to(code).action == "same-block"


@pytest.mark.parametrize(
    ("codes", "action"),
    [
        (THEN_NEXT, "same-block-then-next-replica"),
        (NEXT_REPLICA, "next-replica"),
        (BACK_OFF_IN_DOUBT, "back-off"),
    ],
)
def test_in_doubt_with_another_action(codes: list[int], action: str) -> None:
    for code in codes:
        assert isinstance(error(code), InDoubtError), code
        assert reaction_to(code).action == action, code


@pytest.mark.parametrize(
    ("code", "text", "may_lack"),
    [
        # What 26.9 says when a rename fails, or memory is short.
        (1001, "std::filesystem::filesystem_error: in rename: Input/output error", True),
        (241, "Query memory limit exceeded", True),
        (241, "memory limit exceeded: While executing MergeTreeSink", True),
        (241, "limit exceeded: While executing NumbersRange.", False),
        (
            241,
            "exceeded: while executing 'FUNCTION toString(number :: 0) -> toString(number) String "
            ": 1': while pushing to view default.mv",
            False,
        ),
        (395, "told to: while executing 'FUNCTION throwIf(x :: 1) -> UInt8 : 2'", False),
        (252, "Too many parts (300)", False),
        (252, "Too many partitions for single INSERT block (more than 3)", False),
        (159, "Timeout exceeded", False),
        (60, "Table does not exist", False),
        (202, "Too many simultaneous queries", False),
        (499, "S3 error", True),
    ],
)
def test_after_which_answers_a_known_block_may_lack_its_part(
    code: int, text: str, may_lack: bool
) -> None:
    assert may_lack_part(error(code, text)) is may_lack
    assert not may_lack_part(reply_lost("http://h:1", "insert", "CONNECTION_LOST", "cut", False))


def test_too_many_queries_is_refused_before_anything_happened() -> None:
    assert isinstance(error(202), TransientError)


def test_logical_error_stops_but_is_in_doubt() -> None:
    assert isinstance(error(49), InDoubtError)
    assert reaction_to(49).action == "stop"


def test_252_means_two_things() -> None:
    parts = error(252, "Too many parts (300). Merges are processing significantly slower")
    partitions = error(252, "Too many partitions for single INSERT block (more than 100)")
    assert isinstance(parts, InDoubtError)
    assert parts.action == "back-off"
    assert isinstance(partitions, TerminalError)


@pytest.mark.parametrize(
    "text",
    [
        "Cannot insert into table in readonly mode",
        "reader: Cannot execute query in readonly mode",
        "Cannot modify 'async_insert' setting in readonly mode",
    ],
)
def test_164_of_a_read_only_user_is_terminal(text: str) -> None:
    assert isinstance(error(164, text), TerminalError)


def test_164_of_a_replica_is_in_doubt() -> None:
    inactive = error(164, "Replica is not active")
    assert isinstance(inactive, InDoubtError)
    assert inactive.action == "next-replica"


def test_unlisted_code_is_in_doubt_with_an_alert() -> None:
    unknown = error(7777)
    assert isinstance(unknown, InDoubtServerError)
    assert (unknown.code, unknown.name, unknown.alert) == (7777, "ERROR_7777", True)


def test_the_outermost_code_counts() -> None:
    text = "Unknown status, client must retry. Reason: Code: 159, e.displayText() = Timeout"
    assert error(319, text).code == 319
    assert code_in_text("no code here") is None


def test_the_header_wins_over_the_text() -> None:
    both = error_from_reply(
        url="u", what="w", status=500, header_code="60", text="Code: 319.", read_only=False
    )
    assert both.code == 60


@pytest.mark.parametrize("code", [*sorted(REACTIONS), 7777])
def test_a_read_is_never_in_doubt(code: int) -> None:
    kind = error(code, read_only=True)
    assert not isinstance(kind, InDoubtError)
    assert isinstance(kind, TerminalError) == isinstance(error(code), TerminalError)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, TerminalServerError),
        (413, TerminalServerError),
        (302, TerminalServerError),
        (429, InDoubtServerError),
        (502, InDoubtServerError),
        (200, InDoubtServerError),
    ],
)
def test_replies_that_are_not_of_clickhouse(status: int, kind: type[ServerError]) -> None:
    reply = error_from_reply(
        url="u", what="w", status=status, header_code=None, text="<html>", read_only=False
    )
    assert isinstance(reply, kind)
    assert reply.code == 0


@pytest.mark.parametrize(
    "made",
    [
        error(60, "no table"),
        error(202),
        error(319),
        nothing_sent("http://h:1", "insert", "CONNECTION_REFUSED", "refused"),
        reply_lost("http://h:1", "insert", "SOCKET_TIMEOUT", "30 s", False),
    ],
)
def test_errors_survive_pickling(made: ServerError) -> None:
    copy = pickle.loads(pickle.dumps(made))
    assert type(copy) is type(made)
    assert str(copy) == str(made)
    assert copy.__dict__ == made.__dict__
    assert copy.hint
    assert copy.url == made.url


def test_messages_say_what_and_where() -> None:
    made = error(60, "Table default.nope doesn't exist")
    assert "insert into shop.orders on http://h:1: UNKNOWN_TABLE (60)" in str(made)
    assert isinstance(nothing_sent("u", "w", "N", "y"), TransientServerError)


#: Every code that is listed, by what is done: the kind of error, what comes next, and whether a
#: person is told.
ALL = {
    ("in-doubt", "same-block", False): {
        *(159, 225, 235, 236, 244, 319, 384, 394, 999),
    },
    ("in-doubt", "same-block-then-next-replica", False): {32, 209, 210},
    ("in-doubt", "next-replica", False): {164, 242, 279},
    ("in-doubt", "next-replica", True): {75, 243},
    ("in-doubt", "back-off", False): {203, 241},
    ("in-doubt", "back-off", True): {252, 285, 286},
    ("in-doubt", "stop", True): {49},
    ("transient", "back-off", False): {202},
    ("terminal", "stop", False): {
        *(10, 16, 20, 46, 47, 50, 53, 60, 62, 81, 115, 192, 193, 194, 195),
        *(291, 349, 368, 452, 469, 497, 516),
    },
}


def test_what_is_done_about_each_code_is_listed_once() -> None:
    """Whoever changes a reaction changes what becomes of rows, so it stands here as well."""
    found: dict[tuple[str, str, bool], set[int]] = {}
    for code, reaction in REACTIONS.items():
        found.setdefault((reaction.kind, reaction.action, reaction.alert), set()).add(code)
    assert found == ALL


def test_codes_of_refusals_that_say_more() -> None:
    """Of the table's structure; before anything is executed; of ZooKeeper."""
    assert {8, 10, 16, 20, 44, 47, 50, 53, 70, 368} == STRUCTURE_CODES
    assert {16, 60, 62, 81, 115, 192, 193, 194, 195, 291, 452, 497, 516} == ANALYSIS_CODES
    assert {225, 242, 244, 999} == KEEPER_CODES


def test_codes_have_the_names_that_the_engine_gives_them() -> None:
    """So that a number that is wrong, or missing among those about values, is seen."""
    with chdb.connect(":memory:") as engine:
        answer = engine.query("SELECT number, errorCodeToName(number) FROM numbers(1100)", "TSV")
    named = (line.split("\t") for line in str(answer).splitlines())
    names = {int(number): name for number, name in named}
    # 18.16 has it, today's servers do not.
    names[368] = "BAD_TYPE_OF_FIELD"
    assert {code: reaction.name for code, reaction in REACTIONS.items()} == {
        code: names[code] for code in REACTIONS
    }
    assert sorted(names[code] for code in DATA_CODES) == VALUE_NAMES


@pytest.mark.parametrize(
    ("code", "may_land"), [(75, False), (243, False), (209, True), (319, True), (202, False)]
)
def test_a_server_without_room_is_done_with_what_it_was_sent(code: int, may_land: bool) -> None:
    assert may_still_land(error(code)) == may_land
