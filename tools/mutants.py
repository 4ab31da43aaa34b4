"""Small faults to put into a module: typical slips in operators, bounds, conditions and statements.

Strings other than SQL are not mutated, nor are annotations, decorators, log lines, assertions, and exception messages.
"""

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
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
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
PAIRS = (("min", "max"), ("any", "all"), ("floor", "ceil"), ("minimum", "maximum"), ("exp", "log"), ("zeros", "ones"))
NAMES = {name: other for pair in PAIRS for name, other in (pair, pair[::-1])}
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WHERE|ORDER|BEGIN|ROLLBACK|PRAGMA)\b")
SQL_CHANGES = (
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r"(?<=WHERE )(\w+) = ", r"\1 != "),
    (r" AND ", " OR "),
    (r"MAX\(", "MIN("),
    (r" ORDER BY [\w, ]+$", ""),
    (r" DESC\b", ""),
    (r" OR (REPLACE|IGNORE)\b", ""),
)
PASSED_OVER = (ast.Assert, ast.Import, ast.ImportFrom, ast.pattern)
PASSED_OVER_FIELDS = ("annotation", "returns", "decorator_list", "format_spec", "exc", "ctx")
DELETED = "(deleted)"
CONTEXT, LONGEST = 40, 90  # characters that are shown


@dataclass(frozen=True)
class Mutant:
    """One fault: ``fault`` replaces item ``index`` of a ``field`` of a node. ``lines`` are those of the statement
    around it, without its block; None if the fault takes effect when the module is loaded.
    """

    parent: ast.AST
    field: str
    index: int | None
    fault: ast.AST
    line: int
    lines: range | None
    was: str
    now: str

    def put(self) -> None:
        """Put the fault into the tree, permanently."""
        value = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, self.fault)
        else:
            value[self.index] = self.fault


def mutants(tree: ast.Module) -> list[Mutant]:
    """Return every fault that a module can have, in order of lines. They share the tree: after one is put into it, the
    others are no longer of use.
    """
    return sorted(_within(tree, None), key=lambda mutant: mutant.line)


def _within(parent: ast.AST, lines: range | None) -> Iterator[Mutant]:
    for field, value in ast.iter_fields(parent):
        if field in PASSED_OVER_FIELDS:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if (
                not isinstance(node, ast.AST)
                or isinstance(node, PASSED_OVER)
                or _is_said(node)
                or (lines is None and _is_type(node))
            ):
                continue
            inner = lines
            if isinstance(node, ast.stmt) and (
                lines is not None or isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
            ):
                inner = _lines(node)
            elif isinstance(node, ast.ExceptHandler):
                inner = range(node.body[0].lineno, node.body[0].lineno + 1)
            for fault in _faults(node):
                ast.fix_missing_locations(ast.copy_location(fault, node))
                was, now = _shown(node, fault)
                yield Mutant(parent, field, index, fault, node.lineno, inner, was, now)
            yield from _within(node, inner)


def _lines(statement: ast.stmt) -> range:
    block = getattr(statement, "body", None) or getattr(statement, "cases", None)
    first = block[0].pattern if block and isinstance(block[0], ast.match_case) else block[0] if block else None
    return range(statement.lineno, max(statement.lineno, first.lineno - 1 if first else statement.end_lineno or 0) + 1)


def _is_said(node: ast.AST) -> bool:
    """Return whether it is a docstring or a line for the log."""
    if not isinstance(node, ast.Expr):
        return False
    called = node.value.func if isinstance(node.value, ast.Call) else None
    logs = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "log"
    return logs or isinstance(node.value, ast.Constant)


def _shown(node: ast.AST, fault: ast.AST) -> tuple[str, str]:
    """Return both as text, from shortly before the first difference."""
    was, now = (ast.unparse(either).split("\n")[0] for either in (node, fault))
    if isinstance(fault, ast.Pass):
        return was[:LONGEST], DELETED
    parted = (place for place, letters in enumerate(zip(was, now, strict=False)) if letters[0] != letters[1])
    same = max(0, next(parted, min(len(was), len(now))) - CONTEXT)
    before = "..." if same else ""
    return before + was[same:][:LONGEST], before + now[same:][:LONGEST]


def _is_type(node: ast.AST) -> bool:
    """Return whether it is a union of types."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _with(node: ast.AST, **changes: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def _without(items: list[ast.expr], index: int) -> list[ast.expr]:
    return items[:index] + items[index + 1 :]


def _faults(node: ast.AST) -> Iterator[ast.AST]:
    """Return what may replace a node by mistake."""
    match node:
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield _with(node, ops=[*ops[:index], other(), *ops[index + 1 :]])
        case ast.BinOp(left=left, op=op, right=right) | ast.AugAssign(target=left, op=op, value=right):
            texts = any(
                isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
                for side in (left, right)
            )
            if type(op) in OPERATORS and not texts:
                yield _with(node, op=OPERATORS[type(op)]())
            if isinstance(node, ast.AugAssign):
                yield ast.Pass()
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for index in range(len(values)):
                left_over = _without(values, index)
                yield _with(node, values=left_over) if len(left_over) > 1 else copy.copy(left_over[0])
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield copy.copy(operand)
        case ast.IfExp(body=body, orelse=orelse):
            yield copy.copy(body)
            yield copy.copy(orelse)
        case ast.If():
            yield _with(node, test=ast.Constant(True))
            yield _with(node, test=ast.Constant(False))
        case ast.While():
            yield _with(node, test=ast.Constant(False))
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for number, generator in enumerate(node.generators):
                for index in range(len(generator.ifs)):
                    fewer = _with(generator, ifs=_without(generator.ifs, index))
                    yield _with(node, generators=[*node.generators[:number], fewer, *node.generators[number + 1 :]])
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(2 * value or 1.0)
        case ast.Constant(value=str() as text) if SQL.match(text):
            for pattern, change in SQL_CHANGES:
                for found in re.finditer(pattern, text):
                    yield ast.Constant(text[: found.start()] + found.expand(change) + text[found.end() :])
        case ast.Call(func=function, keywords=keywords):
            name = (
                function.id
                if isinstance(function, ast.Name)
                else function.attr
                if isinstance(function, ast.Attribute)
                else ""
            )
            if name in NAMES:
                field = "id" if isinstance(function, ast.Name) else "attr"
                yield _with(node, func=_with(function, **{field: NAMES[name]}))
            for index, keyword in enumerate(keywords):
                if keyword.arg and not isinstance(keyword.value, ast.Constant):
                    yield _with(node, keywords=keywords[:index] + keywords[index + 1 :])
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(None)
        case ast.With(items=items, body=body) if all(item.optional_vars is None for item in items):
            yield ast.If(ast.Constant(True), body, [])
        case ast.ExceptHandler(body=body) if not isinstance(body[-1], ast.Raise):
            yield _with(node, body=[ast.Raise()])
