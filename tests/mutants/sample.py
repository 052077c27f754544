"""Which mutants there are, without those that nothing could tell apart, and a sample of them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from random import Random

TARGETS = ("parity/compare", "parity/gates", "parity/metrics", "parity/golden", "parity/policy.py")


def modules(tree: Path) -> list[Path]:
    """The files of the core, below the tree."""
    found = [
        path
        for target in TARGETS
        for path in ((tree / target).rglob("*.py") if (tree / target).is_dir() else [tree / target])
    ]
    return sorted(path.relative_to(tree) for path in found)


def sampled(items: Iterable, seed: int, tree: Path) -> list:
    """Work items in the order of a seed: each place in the source once, with one of the operators that fit there.

    Many operators fit a `+`, few fit an `if`: drawn by mutants instead of places, the sample would be of sums.
    """
    places = defaultdict(list)
    silent = {path: _silent(tree / path) for path in modules(tree)}
    for item in items:
        one = item.mutations[0]
        if not any(start <= one.start_pos < end for start, end in silent[one.module_path]):
            places[str(one.module_path), one.start_pos, one.end_pos].append(item)
    rng = Random(seed)
    drawn = [rng.choice(sorted(found, key=_name)) for _, found in sorted(places.items())]
    rng.shuffle(drawn)
    return drawn


def _name(item) -> tuple[str, int]:
    return item.mutations[0].operator_name, item.mutations[0].occurrence


def _silent(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """From where to where a change is seen by nobody: annotations, which are never evaluated, and what only type
    checkers read."""
    nodes: list[ast.AST] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes.append(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]
            nodes += [one.annotation for one in arguments if one.annotation] + ([node.returns] if node.returns else [])
            nodes += [one.annotation for one in ast.walk(node) if isinstance(one, ast.AnnAssign)]
        if isinstance(node, ast.AnnAssign) and node.value is None:
            nodes.append(node)
    return [((one.lineno, one.col_offset), (one.end_lineno, one.end_col_offset)) for one in nodes]
