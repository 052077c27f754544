"""A recording that is not green judges nothing: a test that is red by itself would count as a kill."""

from __future__ import annotations

import json
import re
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import recorder


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Record in a tree of nothing but these files, with a pytest that ends so."""
    for part in (*mutants.COPIED, "tree", "record"):
        (tmp_path / part).mkdir()
    for file in mutants.FILES:
        (tmp_path / file).touch()
    monkeypatch.setattr(mutants, "ROOT", tmp_path)

    def ending(code: int, said: str, red: int = 0):
        def run(command, stdout, **options):
            stdout.write(said)
            stdout.flush()
            known = {"tests": dict.fromkeys(map(str, range(1000)), 1.0), "red": [f"test_{one}" for one in range(red)]}
            (tmp_path / "record" / "costs.json").write_text(json.dumps(known))
            return CompletedProcess(command, code)

        monkeypatch.setattr(mutants.subprocess, "run", run)
        mutants._record(tmp_path / "tree", tmp_path / "record", ["tests"])

    return ending


@pytest.mark.parametrize(("code", "said", "red"), [(1, "6 failed, 1000 passed\n", 6), (2, "1 error\n", 0), (4, "", 0)])
def test_a_recording_that_is_not_green_ends_with_one_sentence(record, tmp_path, code, said, red):
    with pytest.raises(SystemExit, match=r"^[^\n]* not green [^\n]*$"):
        record(code, said, red)
    assert not (tmp_path / "record" / "costs.json").exists()  # the next call records again


def test_a_test_that_is_red_without_a_mutant_is_left_out_and_named(record, tmp_path, capsys):
    record(1, "1 failed, 1000 passed\n", 1)
    assert (
        tmp_path / "record" / "costs.json"
    ).exists() and "left out, red without a mutant: test_0" in capsys.readouterr().out


def test_a_green_recording_is_kept(record, tmp_path):
    record(0, "9 passed\n")
    assert (tmp_path / "record" / "costs.json").exists()


def test_the_copy_holds_every_file_that_tests_read_from_the_root():
    root = mutants.ROOT
    read = {
        name
        for path in root.glob("tests/**/*.py")
        for name in re.findall(r'(?:ROOT|parents\[2\]) / "([\w.-]+)"', path.read_text())
    }
    assert {"requirements.lock", "pyproject.toml"} <= read
    assert {name for name in read if (root / name).is_file()} - {*mutants.FILES} == set()


def test_a_golden_is_made_without_tracing_and_what_is_traced_behind_it_is_no_error(monkeypatch, tmp_path):
    """Coverage looks through the loaded modules for what was imported before, and warns: both are errors here."""
    coverage, said = pytest.importorskip("coverage"), []

    class Running:
        _warn_preimported_source = True

        def stop(self):
            said.append("stopped")

        def start(self):
            assert not self._warn_preimported_source
            said.append("started")

    monkeypatch.setattr(coverage.Coverage, "current", classmethod(lambda cls: Running()))
    assert recorder._untraced(lambda out: said.append("made") or out, tmp_path) == tmp_path
    assert said == ["stopped", "made", "started"]


def test_a_golden_of_prompts_by_place_is_kept_and_copied(monkeypatch, tmp_path):
    """A fixture hands prompts and tokens over by their place; a copy is made where their content is the same."""
    made = []

    def make(out, prompts, tokens=48, **changes):
        made.append(tokens)
        out.mkdir()
        return SimpleNamespace(folder=out)

    for name in ("one", "two"):
        (tmp_path / name).write_text("prompts")
    monkeypatch.setattr(recorder, "GOLDENS", tmp_path / "kept")
    monkeypatch.setattr(recorder, "RECORD", tmp_path)
    monkeypatch.setattr(recorder, "_untraced", lambda make, *given, **asked: make(*given, **asked))
    monkeypatch.setattr("parity.golden.store.Dump", lambda folder: folder)
    recorder._kept(make, tmp_path / "a", tmp_path / "one", 12)
    assert recorder._kept(make, tmp_path / "b", tmp_path / "two", 12) == tmp_path / "b"
    recorder._kept(make, tmp_path / "c", tmp_path / "one", 13)
    assert made == [12, 13]
