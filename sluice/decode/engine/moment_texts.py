"""DateTime and DateTime64 from text: the engine's best-effort reading, as in JSON strings, but of
texts that say one moment that there is, and nothing clamped."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.decode.engine.dates import CUT, is_cut, is_problem, problem
from sluice.decode.engine.scalars import Expression, Place, scalar_reader
from sluice.decode.engine.session import literal
from sluice.decode.engine.types import TypeNode, parse_type, scale_of


@dataclass(frozen=True, slots=True)
class MomentTexts:
    """Expressions over a String. None of them throws.

    :param value: of the target type; NULL for many a text that is none.
    :param unfit: UInt8, true if the text is no value of the type.
    :param unread: UInt8, true if it is not even one beyond the type.
    """

    value: Expression
    unfit: Expression
    unread: Expression


def moment_in(node: TypeNode) -> TypeNode | None:
    """The DateTime or DateTime64 that a value of this type is, if it is not null; None: another."""
    if node.name in ("Nullable", "LowCardinality"):
        return moment_in(node.inner())
    if node.name == "SimpleAggregateFunction":
        return moment_in(node.inner(1))
    return node if node.name in ("DateTime", "DateTime64") else None


def remark_on(text: str, type_text: str) -> str:
    """Why a text cannot be read as this type, or does not fit it, if that is because of the date
    that it says; else ""."""
    node = moment_in(parse_type(type_text))
    return "" if node is None else problem(text.strip(" '"), scale_of(node))


def moment_texts(node: TypeNode, cuts: bool = False) -> MomentTexts:
    """Of a DateTime or a DateTime64.

    :param cuts: digits of a second that the type does not keep are cut.
    """
    reader = scalar_reader(node, Place(nullable=True, in_tuple=False, refuse_null=False), "Int256")
    fault, loose = reader.fault, reader.loose.removeprefix("Nullable(").removesuffix(")")
    scale = scale_of(node)
    assert fault is not None

    def read(text: str) -> str:
        return f"accurateCastOrNull({text}, {literal(loose)})"

    def unread(text: str) -> str:
        return f"(isNull({read(text)}) OR {is_problem(text, scale)})"

    def unfit(text: str) -> str:
        cut = is_cut(text, CUT if cuts else scale)
        return f"({unread(text)} OR ({fault(read(text))}) != 0 OR {cut})"

    return MomentTexts(
        lambda text: f"accurateCastOrNull({text}, {literal(node.text)})", unfit, unread
    )
