"""Text to scalar types: the same texts are read as in JSON, the same are refused."""

from __future__ import annotations

from sluice.decode.engine.dates import CUT, is_cut, is_problem, problem
from sluice.decode.engine.scalars import UNREAD, Place, Reader, scalar_reader
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import TypeNode, parse_type, scale_of
from sluice.decode.typed.pair import Pair, either, fails, integer_bounds, or_null, over

#: The 256-bit reader wraps beyond these digits.
_OVERLONG = "[0-9]{61,}"


def from_text(target: TypeNode, cuts: bool = False) -> Pair | None:
    """As in JSON: read in the type that the JSON reader reads, judged as it judges.

    :param cuts: digits of a second that the target does not keep are cut.
    """
    if target.name == "FixedString":
        length = target.arguments[0]
        return Pair(
            lambda value: f"toFixedString(substring({value}, 1, {length}), {length})",
            lambda value: f"length({value}) > {length}",
        )
    if target.name in ("Time", "Time64"):
        failing = fails(target.text)
        if cuts or target.name == "Time":
            return Pair(or_null(target.text), failing, failing)
        fraction = literal(f"[.][0-9]{{{scale_of(target)}}}[0-9]*[1-9]")
        unfit = either(failing, lambda value: f"match({value}, {fraction})")
        return Pair(or_null(target.text), unfit, failing)
    if target.name in ("DateTime", "DateTime64"):
        return _moment(target, cuts)
    reader = _json_reader(target)
    if reader.fault is None:
        return None
    fault, narrow = reader.fault, reader.narrow
    if reader.wide == "Nullable(String)":

        def as_null(value: str) -> str:
            return f"CAST({value}, 'Nullable(String)')"

        def unfit(value: str) -> str:
            return f"{fault(as_null(value))} != 0"

        def chosen(value: str) -> str:
            return f"if({unfit(value)}, NULL, {value})"

        return Pair(
            lambda value: f"assumeNotNull({narrow(chosen(value))})",
            unfit,
            lambda value: f"{fault(as_null(value))} = {UNREAD}",
        )
    is_number = integer_bounds(target.name) is not None

    def unread(value: str) -> str:
        return f"isNull({_read(value, reader.loose)})"

    def unfit_value(value: str) -> str:
        return f"{fault(_read(value, reader.loose))} != 0"

    def overlong(value: str) -> str:
        return f"match({value}, '{_OVERLONG}')"

    return Pair(
        lambda value: or_null(target.text)(_read(value, reader.wide)),
        either(overlong, unread, unfit_value) if is_number else either(unread, unfit_value),
        (lambda value: f"(NOT {overlong(value)} AND {unread(value)})") if is_number else unread,
    )


def _json_reader(target: TypeNode) -> Reader:
    place = Place(nullable=True, in_tuple=False, refuse_null=False)
    return scalar_reader(target, place, "Int256")


def _read(value: str, read_as: str) -> str:
    """A text as the JSON reader reads it, NULL if it does not.

    :param read_as: a type, Nullable or not.
    """
    inner = read_as.removeprefix("Nullable(").removesuffix(")")
    return f"accurateCastOrNull({value}, {literal(inner)})"


def _moment(target: TypeNode, cuts: bool) -> Pair:
    """DateTime and DateTime64: the engine's best-effort reading, as in JSON, but of texts that say
    one moment that there is, and nothing clamped."""
    reader, scale = _json_reader(target), scale_of(target)
    fault = reader.fault
    assert fault is not None

    def unread(text: str) -> str:
        return f"(isNull({_read(text, reader.loose)}) OR {is_problem(text, scale)})"

    def unfit(text: str) -> str:
        cut = is_cut(text, CUT if cuts else scale)
        return f"({unread(text)} OR ({fault(_read(text, reader.loose))}) != 0 OR {cut})"

    return Pair(or_null(target.text), unfit, unread)


def remark_on(text: str, type_text: str) -> str:
    """Why a text cannot be read as this type, or does not fit it, if that is because of the date
    that it says; else ""."""
    node = _moment_in(parse_type(type_text))
    return "" if node is None else problem(text.strip(" '"), scale_of(node))


def _moment_in(node: TypeNode) -> TypeNode | None:
    """The DateTime or DateTime64 that a value of this type is, if it is not null; None: another."""
    if node.name in ("Nullable", "LowCardinality", "SimpleAggregateFunction"):
        return _moment_in(node.parts()[0])
    return node if node.name in ("DateTime", "DateTime64") else None


def by_text(target: TypeNode) -> Pair | None:
    """Of a number: through its text, which no type can misread."""
    pair = from_text(target)
    if pair is None:
        return None
    through = over(pair, lambda value: f"toString({value})")
    return Pair(through.narrow, through.unfit)
