"""Finding a module's source without importing it, and what it reaches."""

from __future__ import annotations

import sys

import pytest

from parity.golden.sources import _imports, digests, located, reached

SOURCES = {
    "house_a/__init__.py": '"""Nothing but words."""\n',
    "house_a/door.py": "from .inner import hall\nfrom . import roof as lid\nraise RuntimeError('imported')\n",
    "house_a/inner/__init__.py": "",
    "house_a/inner/hall.py": "def late():\n    import house_b.cellar\n",
    "house_a/roof.py": "from importlib import import_module\nX = import_module('house_b.attic')\n",
    "house_b/__init__.py": "",
    "house_b/cellar.py": "import numpy as np\n",
    "house_b/attic.py": "import json\n",
    "house_b/unrelated.py": "Y = 1\n",
}


@pytest.fixture
def houses(tmp_path, monkeypatch):
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_imports_are_followed_into_functions_packages_and_strings_and_nothing_is_imported(houses):
    found = {name for name in reached(["house_a.door"]) if name.startswith("house")}
    assert found == {
        *("house_a", "house_a.door", "house_a.inner", "house_a.inner.hall", "house_a.roof"),
        *("house_b", "house_b.cellar", "house_b.attic"),
    }
    assert not [name for name in sys.modules if name.startswith("house")]


def test_what_an_installed_package_imports_is_left_alone(houses):
    found = reached(["house_a.door"])
    assert "numpy" in found and not [name for name in found if name.startswith("numpy.")]


def test_the_references_reach_each_other_and_no_device():
    found = reached(["parity.references.dump"])
    assert {"parity.references.rope", "parity.references.roundings", "parity.references.loop"} <= found
    assert not [name for name in found if name.startswith("parity.device")]


def test_a_changed_file_changes_its_digest_and_one_that_says_nothing_has_none(houses):
    before = digests(["house_a", "house_a.door", "house_b.attic"])
    assert list(before) == ["house_a.door", "house_b.attic"]
    (houses / "house_a/door.py").write_text("pass\n")
    after = digests(before)
    assert before["house_a.door"] != after["house_a.door"] and before["house_b.attic"] == after["house_b.attic"]


@pytest.mark.parametrize("name", ["house_a.gone", "nowhere.at.all", "house_a...door", "../house_a", "builtins"])
def test_a_module_without_a_source_file_is_nowhere(name, houses):
    assert located(name) is None


@pytest.mark.parametrize(
    ("file", "module", "found"),
    [
        ("Base.py", "house.Base", {"house", "house.door"}),
        ("base.py", "house.base", {"house", "house.door"}),
        ("__init__.py", "house", {"house", "house.door"}),
        ("__init__.py", "house.hall", {"house", "house.hall", "house.hall.door"}),
    ],
)
def test_what_is_imported_from_beside_is_of_the_modules_package(tmp_path, file, module, found):
    path = tmp_path / file
    path.write_text("from . import door\n")
    assert _imports(path, module, lambda name: name.endswith(".door")) == found
