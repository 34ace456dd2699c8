"""All the ways in which a file may be broken by one small change."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.mutants.scope import FIGURES, NO_MATTER, SPEAKING, WORDS

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SWAPPED_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SWAPPED_NAMES = {"begin": "end", "end": "begin"}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one file.

    :param path: below the package, as in `core/budget.py`.
    :param function: qualified name of where it is; "" for a module.
    :param number: which of those that read alike in one function, from 1.
    :param begin, end: the bytes of the source that are replaced.
    """

    path: str
    function: str
    line: int
    before: str
    after: str
    begin: int
    end: int
    number: int = 1

    @property
    def key(self) -> str:
        """Names it, whatever lines were added before it."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.path} {self.function}: {self.before} => {self.after}{again}"

    def of(self, source: bytes) -> bytes:
        """The broken file."""
        return source[: self.begin] + self.after.encode() + source[self.end :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file that can be compiled, in its order."""
    walker = _Walker(path, source)
    walker.visit_body(ast.parse(source).body)
    seen: Counter[str] = Counter()
    found = []
    for mutant in walker.found:
        if mutant.before == mutant.after:
            continue
        seen[mutant.key] += 1
        numbered = replace(mutant, number=seen[mutant.key])
        compile(numbered.of(source), path, "exec")
        found.append(numbered)
    return found


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


class _Walker:
    """Walks a module; knows where it is."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._is_function = False
        self.found: list[Mutant] = []

    def _add(self, node: Any, after: str) -> None:
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(self._source[begin:end].decode().split())
        function = ".".join(self._names)
        self.found.append(Mutant(self._path, function, node.lineno, before, after, begin, end))

    def _change(self, node: Any, change: Callable[[Any], Any]) -> None:
        """An expression after a change of a copy of it."""
        changed = change(copy.deepcopy(node))
        text = _text(changed)
        is_simple = isinstance(changed, ast.Name | ast.Constant | ast.Call | ast.Attribute)
        self._add(node, text if is_simple else f"({text})")

    # Statements

    def visit_body(self, body: list[ast.stmt]) -> None:
        """A block of statements."""
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                self._definition(node)
            case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Global() | ast.Nonlocal():
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case ast.Expr(value=ast.Call() as call):
                if not _speaks(call):
                    self._drop(node)
                    self._expression(call)
            case ast.If():
                self._if(node)
            case ast.Raise():
                self._drop(node)
            case ast.Continue() | ast.Break():
                self._drop(node)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
                self._assignment(node)
            case ast.Return(value=value) if value is not None:
                self._expression(value)
            case ast.For():
                self._loop(node.iter)
                self._expression(node.iter)
                self.visit_body(node.body + node.orelse)
            case ast.While():
                self._expression(node.test)
                self.visit_body(node.body)
            case ast.Try():
                inner = [statement for handler in node.handlers for statement in handler.body]
                self.visit_body(node.body + inner + node.orelse + node.finalbody)
            case ast.With():
                for item in node.items:
                    self._expression(item.context_expr)
                self.visit_body(node.body)
            case ast.Match():
                for case in node.cases:
                    self.visit_body(case.body)
            case _:
                pass

    def _drop(self, node: ast.stmt) -> None:
        if self._is_function:
            self._add(node, "pass")

    def _definition(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        is_function = isinstance(node, ast.FunctionDef)
        bases = [] if is_function else [_text(base) for base in node.bases]  # type: ignore[union-attr]
        if node.name in NO_MATTER or "Protocol" in bases:
            return
        before = self._is_function
        self._names.append(node.name)
        if isinstance(node, ast.FunctionDef):
            for value in [*node.args.defaults, *node.args.kw_defaults]:
                if value is not None:
                    self._expression(value)
        self._is_function = is_function
        self.visit_body(node.body)
        self._names.pop()
        self._is_function = before

    def _if(self, node: ast.If) -> None:
        if _text(node.test) == "TYPE_CHECKING":
            return
        self._add(node.test, f"not ({_text(node.test)})")
        self._add(node.test, "False")
        if isinstance(node.test, ast.BoolOp | ast.Compare) and not node.orelse:
            self._add(node.test, "True")
        self._expression(node.test)
        self.visit_body(node.body + node.orelse)

    def _assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {_text(target) for target in targets}
        if names & {"hint", "__slots__", "__all__"} or node.value is None:
            return
        if all(name.startswith(FIGURES) for name in names):
            return
        if isinstance(node, ast.AugAssign):
            self._drop(node)
        elif any(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            is_made = self._names[-1:] == ["__init__"]
            if not is_made:
                self._drop(node)
        elif isinstance(node.value, ast.Constant) and _is_number(node.value):
            self._add(node.value, "0")
            return
        self._expression(node.value)

    def _loop(self, iterated: ast.expr) -> None:
        self._add(iterated, f"list({_text(iterated)})[:1]")

    # Expressions

    def _expression(self, node: ast.expr) -> None:
        if isinstance(node, ast.JoinedStr | ast.Lambda):
            if isinstance(node, ast.Lambda):
                self._expression(node.body)
            return
        if isinstance(node, ast.Call) and _speaks(node):
            return
        self._mutate(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.Call) and child is node.func:
                self._called(node.func)
            elif isinstance(child, ast.expr):
                self._expression(child)
            elif isinstance(child, ast.keyword) and child.arg not in WORDS:
                self._expression(child.value)
            elif isinstance(child, ast.comprehension):
                self._expression(child.iter)
                for test in child.ifs:
                    self._add(test, "True")
                    self._expression(test)

    def _called(self, function: ast.expr) -> None:
        """What is called is not exchanged for something else, but what it belongs to may be."""
        if isinstance(function, ast.Attribute):
            self._expression(function.value)

    def _mutate(self, node: ast.expr) -> None:
        match node:
            case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
                self._change(node, lambda c: _set(c, "ops", [_COMPARISONS[type(operator)]()]))
            case ast.Compare():
                for place, operator in enumerate(node.ops):
                    ops = list(node.ops)
                    ops[place] = _COMPARISONS[type(operator)]()
                    self._change(node, lambda c, ops=ops: _set(c, "ops", ops))  # type: ignore[misc]
            case ast.BoolOp():
                other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                self._change(node, lambda b: _set(b, "op", other))
                for place in range(len(node.values)):
                    self._change(node, lambda b, place=place: _without(b, place))  # type: ignore[misc]
            case (
                ast.BinOp(left=ast.Constant(value=str()))
                | ast.BinOp(right=ast.Constant(value=str()))
            ):
                pass
            case ast.BinOp(op=operation):
                if type(operation) in _OPERATORS:
                    self._change(node, lambda b: _set(b, "op", _OPERATORS[type(operation)]()))
                self._change(node, lambda b: b.left)
                if isinstance(operation, ast.Add | ast.BitOr | ast.BitAnd):
                    self._change(node, lambda b: b.right)
            case ast.UnaryOp(op=ast.Not()):
                self._change(node, lambda u: u.operand)
            case ast.IfExp():
                self._change(node, lambda i: i.body)
                self._change(node, lambda i: i.orelse)
            case ast.Constant(value=bool() as value):
                self._add(node, str(not value))
            case ast.Constant() if _is_number(node):
                self._add(node, "0" if node.value not in (0, 1) else str(1 - node.value))  # type: ignore[operator]
            case ast.Attribute(attr=name) if name in _SWAPPED_NAMES:
                self._change(node, lambda a: _set(a, "attr", _SWAPPED_NAMES[a.attr]))
            case ast.Call():
                self._call(node)
            case ast.Set() | ast.Dict():
                self._literal(node)
            case ast.Subscript(slice=ast.Slice()):
                self._change(node, lambda s: s.value)
            case _ if isinstance(node, _COMPREHENSIONS):
                self._loop(node.generators[0].iter)
            case _:
                pass

    def _call(self, node: ast.Call) -> None:
        name = _text(node.func)
        if name in _SWAPPED_CALLS:
            self._change(node, lambda c: _set(c, "func", ast.Name(_SWAPPED_CALLS[name])))
        if name in ("min", "max") and len(node.args) == 2:
            for place in (0, 1):
                self._change(node, lambda c, place=place: c.args[place])  # type: ignore[misc]
        if name == "sum":
            inner = _text(node.args[0])
            self._add(node, f"max([*({inner})], default=0)")
        if name == "replace":
            for place in range(len(node.keywords)):
                self._change(node, lambda c, place=place: _dropped(c, "keywords", place))  # type: ignore[misc]

    def _literal(self, node: ast.Set | ast.Dict) -> None:
        count = len(node.elts if isinstance(node, ast.Set) else node.keys)
        if count < 2:
            return
        for place in range(count):
            if isinstance(node, ast.Set):
                self._change(node, lambda s, place=place: _dropped(s, "elts", place))  # type: ignore[misc]
            else:
                self._change(node, lambda d, place=place: _entry_dropped(d, place))  # type: ignore[misc]


def _set(node: Any, name: str, value: Any) -> Any:
    setattr(node, name, value)
    return node


def _without(node: ast.BoolOp, place: int) -> ast.expr:
    values = node.values[:place] + node.values[place + 1 :]
    return values[0] if len(values) == 1 else ast.BoolOp(node.op, values)


def _dropped(node: Any, name: str, place: int) -> Any:
    del getattr(node, name)[place]
    return node


def _entry_dropped(node: ast.Dict, place: int) -> ast.Dict:
    del node.keys[place], node.values[place]
    return node


def _is_number(node: ast.Constant) -> bool:
    return isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _speaks(node: ast.Call) -> bool:
    return _text(node.func).startswith(SPEAKING)


def every(sources: dict[str, bytes]) -> Iterator[Mutant]:
    """The mutants of several files."""
    for path, source in sources.items():
        yield from mutants_of(path, source)
