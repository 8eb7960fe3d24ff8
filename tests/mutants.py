"""Mutants of a verifier: one change, or two, to its syntax tree."""

import ast
import copy
import inspect
import random
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """What was changed, where, the whole source, and the function made from it."""

    change: str
    source: str
    verify: Callable[..., Any]


BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div)
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
SWAPPED_CALLS = {"min": "max", "max": "min", "sum": "max"}


def replacements(
    node: ast.AST, names: dict[str, list[str]]
) -> Iterator[tuple[str, ast.AST | None]]:
    """Every change of one node: its name and the new node, or None to delete a statement."""
    match node:
        case ast.BinOp(left=left, right=right):
            for kind in BINARY:
                if not isinstance(node.op, kind):
                    yield f"operator {kind.__name__}", ast.BinOp(left, kind(), right)
            yield "operands exchanged", ast.BinOp(right, node.op, left)
            yield "left operand only", left
            yield "right operand only", right
        case ast.Compare(left=left, comparators=[right]):
            for kind in ORDER:
                if not isinstance(node.ops[0], kind):
                    yield f"comparison {kind.__name__}", ast.Compare(left, [kind()], [right])
            for value in (True, False):
                yield f"comparison always {value}", ast.Constant(value)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            for other in (value + 1, value - 1, 2 * value + 3):
                yield f"constant {other}", ast.Constant(other)
            # a Fraction, so that exact arithmetic stays exact
            half = [ast.Constant(value), ast.Constant(2)]
            yield "constant halved", ast.Call(ast.Name("Fraction", ast.Load()), half, [])
        case ast.Call(func=ast.Name(id=called), args=args):
            if called in SWAPPED_CALLS:
                other = ast.Name(SWAPPED_CALLS[called], ast.Load())
                yield f"{called} to {other.id}", ast.Call(other, args, [])
            if called in ("min", "max"):
                yield f"{called} dropped", args[-1]
            if called == "range":
                for shift in (1, -1):
                    shifted = ast.BinOp(args[0], ast.Add(), ast.Constant(shift))
                    yield f"range by {shift}", ast.Call(node.func, [shifted], [])
                yield "range from 1", ast.Call(node.func, [ast.Constant(1), *args], [])
        case ast.Subscript(value=value, slice=idx):
            for shift in (1, -1):
                moved = ast.BinOp(idx, ast.Add(), ast.Constant(shift))
                yield f"index by {shift}", ast.Subscript(value, moved, node.ctx)
            for fixed in (0, -1):
                yield f"index {fixed}", ast.Subscript(value, ast.Constant(fixed), node.ctx)
        case ast.Name(id=name, ctx=ast.Load()):
            for other in names.get(name, []):
                yield f"{name} to {other}", ast.Name(other, ast.Load())
        case ast.Tuple(elts=[token, _]) if isinstance(node.ctx, ast.Load):
            yield "accepted_idx dropped", ast.Tuple([token, ast.Constant(None)], node.ctx)
        case ast.If(test=test, body=body, orelse=orelse):
            yield "condition negated", ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
            yield "if deleted", None
        case ast.Assign():
            yield "assignment deleted", None
        case ast.For():
            yield "loop deleted", None
            yield "loop run once", ast.For(node.target, node.iter, [*node.body, ast.Break()], [])


def moves(body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Bodies with one statement moved past its neighbour."""
    for at in range(len(body) - 1):
        yield "moved down", [*body[:at], body[at + 1], body[at], *body[at + 2 :]]


def mutate(tree: ast.Module, names: dict[str, list[str]]) -> Iterator[tuple[str, ast.Module]]:
    """Every tree that is one change away."""
    nodes = list(ast.walk(tree))
    for position, node in enumerate(nodes):
        if isinstance(node, ast.FunctionDef | ast.For | ast.If):
            for change, body in moves(node.body):
                mutated = copy.deepcopy(tree)
                copied: Any = list(ast.walk(mutated))[position]
                copied.body = copy.deepcopy(body)
                yield f"line {node.lineno}: {change} within {type(node).__name__}", mutated
        for change, new in replacements(node, names):
            replacer = _Replace(position, new, copy.deepcopy(tree))
            yield f"line {getattr(node, 'lineno', 0)}: {change}", replacer.tree


class _Replace(ast.NodeTransformer):
    def __init__(self, position: int, new: ast.AST | None, tree: ast.Module):
        self.old, self.new = list(ast.walk(tree))[position], copy.deepcopy(new)
        self.tree = self.visit(tree)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For | ast.If | ast.FunctionDef) and not node.body:
                node.body = [ast.Pass()]

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def make_mutants(
    function: Callable[..., Any], groups: list[list[str]], *, seed: int, n_double: int
) -> list[Mutant]:
    """All mutants by one change, and `n_double` by two that the seed chooses; none twice.

    A variable is exchanged for another one of its group.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tree.body[0].body.pop(0)  # type: ignore[attr-defined]
    names = {name: [x for x in group if x != name] for group in groups for name in group}
    seen = {ast.unparse(tree)}
    found: list[Mutant] = []

    def add(change: str, mutated: ast.Module) -> None:
        source = ast.unparse(ast.fix_missing_locations(mutated))
        if source in seen:
            return
        seen.add(source)
        scope: dict[str, Any] = {**function.__globals__, "Fraction": Fraction}
        exec(compile(source, f"<{change}>", "exec"), scope)
        found.append(Mutant(change, source, scope[function.__name__]))

    singles = list(mutate(tree, names))
    for change, mutated in singles:
        add(change, mutated)
    rng, n_single = random.Random(seed), len(found)
    while len(found) < n_single + n_double:
        change, once = rng.choice(singles)
        again, twice = rng.choice(list(mutate(copy.deepcopy(once), names)))
        add(f"{change}; {again}", twice)
    return found
