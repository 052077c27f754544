"""docs/api.md: every example runs, in the order of the page; what is public is typed, lazy, and no module's name."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import parity
from tests.sample import WHOLE
from tests.shallow import cut_target

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/api.md"


def examples() -> list[tuple[int, str]]:
    """Line and source of every Python example."""
    tokens = MarkdownIt().parse(PAGE.read_text())
    return [(token.map[0] + 1, token.content) for token in tokens if token.type == "fence" and token.info == "python"]


@pytest.fixture
def pair(tiny, tmp_path) -> Path:
    """The pair that ships; by day its target has three layers, and there is one behind the last tap."""
    if WHOLE:
        return tiny
    config = cut_target(tiny, tmp_path / "pair", "drafter")["drafter"] / "config.json"
    taps = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"eagle_config": taps}))
    return tmp_path / "pair"


def test_every_example_runs(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("parity.bundled.tiny", pair.joinpath)
    monkeypatch.setattr("parity.producers.tiny", pair.joinpath)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "home"))
    names: dict[str, object] = {}
    assert len(examples()) >= 8
    for line, source in examples():
        tree = ast.parse(source)
        ast.increment_lineno(tree, line)
        exec(compile(tree, str(PAGE), "exec"), names)


def test_the_page_names_what_is_public():
    told = PAGE.read_text()
    quiet = {
        "__version__",
        "Description",
        "Device",
        "Diagnosis",
        "Dump",
        "GateReport",
        "Policy",
        "Report",
        "TensorReport",
    }
    quiet |= {"TensorResult", "verify_golden", "worst_slices", "ProcessLimits"}
    assert [name for name in parity.__all__ if name not in told and name not in quiet] == []


def test_all_of_it_is_there_and_no_submodule_takes_its_name():
    modules = {path.stem for path in (ROOT / "parity").iterdir()}
    for name in parity.__all__:
        assert getattr(parity, name) is not None and name in dir(parity)
        assert name not in modules, f"importing parity.{name} would replace it"


def test_types_and_places_are_of_the_same_names():
    """What a type checker sees is what is looked up."""
    typed = next(node for node in ast.parse(Path(parity.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == parity._MODULE and {*seen, "__version__"} == set(parity.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = parity.nothing


def test_the_import_alone_loads_nothing_heavy():
    heavy = "{'numpy', 'pydantic', 'click', 'rich', 'torch', 'importlib.metadata'}"
    code = f"import sys, parity; dir(parity); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
