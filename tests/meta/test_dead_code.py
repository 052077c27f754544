"""The check for dead code finds some, and the names that it leaves out are no more than needed."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.sample import by_night

vulture = pytest.importorskip("vulture", reason="of the extra `lint`")

ROOT = Path(__file__).parents[2]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["vulture"]


def unused(*sources: str, **options) -> set[str]:
    """Names that nothing reads in these sources, or in the paths that are checked."""
    checked = vulture.Vulture(**options)
    if not sources:
        checked.scavenge([ROOT / path for path in OPTIONS["paths"]])
    for source in sources:
        checked.scan(source)
    return {item.name for item in checked.get_unused_code()}


def test_a_function_that_nothing_calls_is_found():
    options = {name: value for name, value in OPTIONS.items() if name != "paths"}
    planted = "def orphan(): ...\n\nclass Row:\n    def forgotten(self): ...\n"
    assert unused(planted, "print(Row)", **options) == {"orphan", "forgotten"}


@by_night
def test_every_name_that_is_left_out_would_be_found():
    found = unused()
    assert [pattern for pattern in OPTIONS["ignore_names"] if not any(fnmatch(name, pattern) for name in found)] == []
