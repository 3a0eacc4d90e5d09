"""The one-line changes that `scripts/mutate.py` tries: each replaces one node of a file's syntax tree.

Left alone: docstrings and other texts, annotations, decorators, imports, `__all__`, `raise` and `assert`
statements, and `+`, `|` and the like between texts, tuples or types, where every change is an error that any
test would see.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
SWAPPED = [
    ("min", "max"),
    ("mean", "sum"),
    ("any", "all"),
    ("minimum", "maximum"),
    ("argmin", "argmax"),
    ("amin", "amax"),
]
NAMES = {**dict(SWAPPED), **{b: a for a, b in SWAPPED}}
DROPPED = {"abs", "clone", "detach", "exp", "sqrt", "square"}
"""Methods without arguments whose call is left out."""

NUMBERS = {"Tensor", "float", "int"}
"""What a function has to return, by its annotation, for its result to be doubled."""

Node = ast.expr | ast.stmt | ast.keyword

FIXED = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.JoinedStr)


@dataclass(frozen=True)
class Mutant:
    """A file with one node changed."""

    file: str  # relative to the checkout
    line: int
    text: str  # of the line, as it is
    before: str
    after: str
    lines: range  # of the statement, one of which a test has to run to notice
    source: str  # of the whole file, changed

    @property
    def change(self) -> str:
        return f"{self.before} -> {self.after}"


def mutants_of(file: Path, root: Path) -> list[Mutant]:
    """Every change of a file, in the order of its lines."""
    source = file.read_bytes()
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for node, new, statement in _changes(tree.body, ""):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)  # ast.parse gives both
        put = f"({new})" if isinstance(node, ast.expr) else new
        changed = (source[:begin] + put.encode() + source[end:]).decode()
        text = lines[node.lineno - 1].decode().strip()
        before = " ".join(source[begin:end].decode().split())
        place = file.relative_to(root).as_posix()
        found.setdefault(changed, Mutant(place, node.lineno, text, before, new, statement, changed))
    return sorted(found.values(), key=lambda mutant: mutant.line)


def _changes(body: list[ast.stmt], returns: str) -> Iterator[tuple[Node, str, range]]:
    """What to replace, by what, and the lines of its statement; of statements in a function that returns such
    a thing."""
    for statement in body:
        if isinstance(statement, FIXED) or _is_left_alone(statement):
            continue
        inner = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        nested = [child for block in inner for child in block]
        for handler in getattr(statement, "handlers", []):
            nested += handler.body
        block = getattr(statement, "body", None)
        last = block[0].lineno - 1 if block else statement.end_lineno or 0
        header = range(statement.lineno, max(statement.lineno, last) + 1)
        for node, new in _of_statement(statement, returns):
            yield node, new, header
        for expression in _expressions(statement, set(map(id, nested))):
            for node, new in _of_expression(expression):
                yield node, new, header
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _changes(nested, ast.unparse(statement.returns) if statement.returns else "")
        else:
            yield from _changes(nested, returns)


def _is_left_alone(statement: ast.stmt) -> bool:
    """Whether it is a docstring, `__all__` or for type checkers only."""
    if isinstance(statement, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "__all__" for target in statement.targets)
    if isinstance(statement, ast.If):
        return isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING"
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _expressions(node: ast.AST, nested: set[int]) -> Iterator[ast.expr]:
    """All expressions in a statement, but those of statements in it."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "handlers"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, FIXED) or id(child) in nested:
                continue
            if isinstance(child, ast.expr):
                yield child
            yield from _expressions(child, nested)


def _of_statement(statement: ast.stmt, returns: str) -> Iterator[tuple[Node, str]]:
    if isinstance(statement, ast.AugAssign) and type(statement.op) in OPERATORS:
        yield statement, ast.unparse(_with(statement, op=OPERATORS[type(statement.op)]()))
    if isinstance(statement, ast.AugAssign):
        yield statement, "pass"
    if isinstance(statement, ast.Expr) and not isinstance(
        statement.value, ast.Yield | ast.YieldFrom | ast.Await
    ):
        yield statement, "pass"
    if isinstance(statement, ast.If | ast.While) and _is_plain(statement.test):
        yield statement.test, f"not {ast.unparse(statement.test)}"
    if isinstance(statement, ast.Return) and statement.value is not None:
        if returns in NUMBERS:
            yield statement.value, _doubled(statement.value)
        elif isinstance(statement.value, ast.Tuple) and returns.startswith("tuple["):
            kinds = returns.removeprefix("tuple[").removesuffix("]").split(", ")
            for kind, value in zip(kinds, statement.value.elts, strict=False):
                if kind in NUMBERS:
                    yield value, _doubled(value)


def _of_expression(node: ast.expr) -> Iterator[tuple[Node, str]]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            ops = [COMPARISONS[type(op)]() if i == j else own for j, own in enumerate(node.ops)]
            yield node, ast.unparse(_with(node, ops=ops))
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in OPERATORS
        and not (_has_no_sum(node.left) or _has_no_sum(node.right))
    ):
        yield node, ast.unparse(_with(node, op=OPERATORS[type(node.op)]()))
        if isinstance(node.op, ast.Add | ast.Sub):
            yield node, ast.unparse(node.left)
    elif isinstance(node, ast.BoolOp):
        yield node, ast.unparse(_with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()))
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.UAdd):
        yield node, ast.unparse(node.operand)
    elif isinstance(node, ast.IfExp) and _is_plain(node.test):
        yield node.test, f"not {ast.unparse(node.test)}"
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_constant(node: ast.Constant) -> Iterator[tuple[Node, str]]:
    value = node.value
    if isinstance(value, bool):
        yield node, str(not value)
    elif isinstance(value, int | float):
        yield node, repr(type(value)(not value) if value in (0, 1) else value + 1)
    elif isinstance(value, str) and value in NAMES:
        yield node, repr(NAMES[value])


def _of_call(node: ast.Call) -> Iterator[tuple[Node, str]]:
    for keyword in node.keywords:  # clamp(min=) and clamp(max=)
        if keyword.arg in ("min", "max") and len(node.keywords) == 1:
            yield keyword, f"{NAMES[keyword.arg]}={ast.unparse(keyword.value)}"
    if isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield node.func, NAMES[node.func.id]
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in NAMES:
            yield node.func, ast.unparse(_with(node.func, attr=NAMES[node.func.attr]))
        if node.func.attr in DROPPED and not node.args:
            yield node, ast.unparse(node.func.value)


def _doubled(value: ast.expr) -> str:
    return ast.unparse(ast.BinOp(value, ast.Mult(), ast.Constant(2)))


def _with(node: Node, **changes: object) -> Node:
    changed = deepcopy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _is_plain(test: ast.expr) -> bool:
    """Whether a condition has no operator of its own that could be changed."""
    return isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.Subscript)


def _has_no_sum(operand: ast.expr) -> bool:
    """Whether that is a text, a tuple, a list or a type."""
    if isinstance(operand, ast.Constant):
        return isinstance(operand.value, str | None)
    return isinstance(operand, ast.JoinedStr | ast.Tuple | ast.List) or (
        isinstance(operand, ast.Name) and operand.id[:1].isupper() and not operand.id.isupper()
    )
