"""One word, one thing: no two types of parity and its reports have one name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKED = ("references", "device", "fixtures", "reports")
"""Folders of the repository that `parity` has links to: the first three are rooms of their own."""


def twice(files: Iterable[Path]) -> dict[str, list[str]]:
    """Public types by name, of which there is more than one, with their files."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(file.name)
    return {name: sorted(found) for name, found in places.items() if len(found) > 1}


def test_no_two_types_have_one_name():
    own = (file for file in (ROOT / "parity").rglob("*.py") if file.relative_to(ROOT / "parity").parts[0] not in LINKED)
    assert twice([*own, *(ROOT / "reports").rglob("*.py")]) == {}


def test_a_name_that_stands_twice_is_found(tmp_path):
    for name, source in {
        "a.py": "class Row: ...",
        "b.py": "class Row: ...\nclass _Row: ...",
        "c.py": "class Line: ...",
    }.items():
        (tmp_path / name).write_text(source)
    assert twice(tmp_path.glob("*.py")) == {"Row": ["a.py", "b.py"]}
