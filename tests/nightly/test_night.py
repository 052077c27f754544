"""A night as a user meets it: no cell hides another, and an interrupted one continues."""

from __future__ import annotations

import json
import signal
import time
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from parity.cli import command
from parity.golden.sources import digests
from parity.history import append, load
from parity.nightly.folder import NightFolder
from parity.nightly.process import CellJob, Job, environment, run_job
from tests.nightly.conftest import DYING, QUIET, ROOT, nightly
from tests.sample import WHOLE, by_night

TAPS = "parity.device.faults:tap_order"
DEVICES = {
    "segfault": f"{DYING}:segfault",
    "quits": f"{DYING}:quits",
    "absent": "no.such.module:load",
    "taps": TAPS,
    "numpy": "numpy",
}


@pytest.fixture(scope="module")
def night(write_matrix, tmp_path_factory):
    """A night with every kind of cell: folder, matrix, and how its command ended, in this process."""
    folder, out, err = tmp_path_factory.mktemp("night"), StringIO(), StringIO()
    matrix = write_matrix(DEVICES, retries=0)
    (folder / "home").mkdir()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("sys.argv", ["parity", "nightly", str(matrix), "--out", str(folder / "night")])
        for name, value in (QUIET | {"PARITY_HOME": str(folder / "home")}).items():
            patch.setenv(name, value)
        code = command()
    ended = dict(code=code, out=out.getvalue(), err=err.getvalue())
    return SimpleNamespace(folder=NightFolder(folder / "night"), matrix=matrix, **ended)


@pytest.fixture
def again(night, parity, monkeypatch):
    """The same command over the night that is there: it writes and says everything anew, and runs nothing."""
    monkeypatch.setenv("GITHUB_ACTIONS", "")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    return lambda *arguments: parity("nightly", night.matrix, "--out", night.folder.path, *arguments)


def test_no_cell_hides_another(night, cell_name):
    assert night.code == 1, night.out + night.err
    found = {result.cell.axes.device: result for result in night.folder.results()}
    assert {name: result.verdict for name, result in found.items()} == {
        **dict.fromkeys(("segfault", "quits", "absent"), "inconclusive"), "taps": "fail", "numpy": "pass",
    }  # fmt: skip
    assert "ended its process by SIGSEGV in its factory" in found["segfault"].error
    assert "ended its process" in found["quits"].error and "exit code 7" in found["quits"].error
    assert "cannot be imported" in found["absent"].error
    assert all(result.error.count("\n") == 0 for result in found.values())
    tail = night.folder.log_tail(cell_name("segfault"))
    assert "loading the runtime" in tail and "Segmentation fault" in tail and "dying.py" in tail


def test_the_last_line_is_the_verdict_the_first_red_cell_and_its_command(night, cell_name):
    last = night.out.splitlines()[-1]
    assert last.startswith(
        f"nightly verdict: fail (3 broken, 1 fail, 1 pass); {cell_name('taps')}: first divergent: drafter.taps"
    )
    assert f"reproduce: parity diff --device {TAPS} --mode local" in last
    lines = night.out.splitlines()[:5]
    assert sorted(line.split()[0] for line in lines) == ["broken", "broken", "broken", "fail", "pass"]


def test_junit_has_a_case_for_every_gate_and_a_broken_one_is_an_error(night, cell_name):
    suites = {suite.get("name"): suite for suite in ElementTree.parse(night.folder.path / "junit.xml").getroot()}
    assert list(suites) == [cell_name(name) for name in DEVICES]
    cases = {
        name: {case.get("name"): [child.tag for child in case] for case in suite} for name, suite in suites.items()
    }
    assert cases[cell_name("numpy")] == {"provenance": ["system-out"], "stages": ["system-out"]}
    assert cases[cell_name("taps")]["stages"] == ["failure"] and cases[cell_name("taps")]["provenance"] == [
        "system-out"
    ]
    assert cases[cell_name("segfault")] == {"provenance": ["error", "system-err"]}


def test_json_lines_are_the_results(night):
    lines = (night.folder.path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["cell"]["axes"]["device"] for line in lines] == list(DEVICES)


def test_github_gets_annotations_and_a_summary(again, cell_name, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    ended = again("--github", "--json", tmp_path / "night.json")
    marks = [line for line in ended.out.splitlines() if line.startswith("::")]
    assert marks[0].startswith(f"::error title=parity nightly%3A {cell_name('taps')}::first divergent: drafter.taps")
    assert len(marks) == 4 and all(mark.startswith("::warning ") for mark in marks[1:])
    assert ended.code == 1 and ended.last.startswith("nightly verdict: fail")
    text = summary.read_text()
    assert text.startswith("before\n## ❌ Parity: fail") and f"| {cell_name('segfault')} | ❔ broken |" in text
    found = json.loads((tmp_path / "night.json").read_text())
    assert found["exit_code"] == 1 and len(found["cells"]) == 5 and found["not_run"] == []


def test_github_actions_is_seen_by_its_variable(again, monkeypatch):
    assert "::error" not in again().out
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert "::error" in again().out


def test_history_gets_the_night_and_says_since_when(again, night, cell_name, tmp_path):
    past, results = tmp_path / "past", night.folder.results()
    earlier = night.folder.night.model_copy(
        update={"name": "20260101T020000.000", "started": "2026-01-01T02:00:00Z", "commit": "a" * 40, "dirty": False}
    )
    clean = next(one for one in results if one.cell.axes.device == "numpy")
    taps = next(one for one in results if one.cell.axes.device == "taps")
    append(str(past), earlier, [clean, clean.model_copy(update={"cell": taps.cell})])
    ended = again("--history", past)
    assert list(load(str(past))["night"].unique()) == ["20260101T020000.000", night.folder.night.name]
    changed = [line for line in ended.out.splitlines() if line.startswith("regression: ")]
    assert len(changed) == 1 and changed[0].startswith(
        f"regression: {cell_name('taps')}: fails since {night.folder.night.started[:10]}"
    )
    assert "first at drafter.taps" in changed[0] and f"between commits {'a' * 10} and " in changed[0]
    page = (night.folder.path / "report.html").read_text()
    assert "aaaaaaa" in page and f"report {night.folder.path / 'report.html'}" in ended.out


def test_a_night_is_in_the_history_of_its_home_unless_told_otherwise(again, night, parity):
    again("--no-history")
    assert not (parity.home / "history").exists()
    again()
    assert list(load(str(parity.home / "history"))["night"].unique()) == [night.folder.night.name]
    assert again("--no-history", "--history", "x").code == 2


def test_a_history_or_a_page_that_cannot_be_written_takes_nothing_from_a_night(again, night, monkeypatch):
    def refuse(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr("parity.history.append", refuse)
    ended = again()
    assert ended.code == 1 and "is not in the history" in ended.err and ended.last.startswith("nightly verdict: fail")
    monkeypatch.setattr("parity.reports.page.render.write", refuse)
    ended = again()
    assert (
        ended.code == 1 and "report.html is not written" in ended.err and ended.last.startswith("nightly verdict: fail")
    )
    assert "report " not in ended.out


@by_night
def test_cells_that_only_leaves_out_are_not_gone(again, night, cell_name, parity, tmp_path):
    again()
    ended = parity("nightly", night.matrix, "--out", tmp_path / "some", "--only", "*numpy*", "--workers", "1")
    others = {cell_name(name) for name in DEVICES if name != "numpy"}
    assert ended.code == 0 and set(NightFolder(tmp_path / "some").night.left_out) == others
    assert ended.last == f"nightly verdict: pass (1 pass, {len(others)} left out)"
    assert "gone" not in ended.out + parity("history", "--changes").out
    (golden,) = {one.golden_digest for one in NightFolder(tmp_path / "some").results()}
    assert set(load(str(parity.home / "history"))["golden"]) == {golden, ""}


def test_a_night_of_another_matrix_or_commit_does_not_go_on(night, write_matrix, parity, monkeypatch):
    other = write_matrix({"numpy": "numpy"})
    ended = parity("nightly", other, "--out", night.folder.path)
    assert ended.code == 2 and "is a night of another matrix" in ended.err
    monkeypatch.setattr("parity.nightly.commits.head", lambda: ("0" * 40, False))
    ended = parity("nightly", night.matrix, "--out", night.folder.path)
    assert ended.code == 2 and "cells of two commits are no night" in ended.err


def test_a_night_of_a_device_that_was_changed_does_not_go_on(night, parity, monkeypatch):
    """Its file may lie outside of what is committed, or in no repository."""
    monkeypatch.setattr("parity.nightly.run.digests", lambda modules: digests(modules) | {"mine": "edited"})
    ended = parity("nightly", night.matrix, "--out", night.folder.path)
    assert ended.code == 2 and "begun with other sources of its devices" in ended.err


def test_an_interrupted_night_keeps_its_cells_and_goes_on(write_matrix, cell_name, tmp_path):
    matrix = write_matrix({"quits": f"{DYING}:quits", "late": f"{DYING}:hangs_unless_told"}, retries=0)
    options = dict(home=tmp_path, env={"PARITY_TEST_GO": str(tmp_path / "go")})
    process = nightly(matrix, "--out", tmp_path / "night", **options)
    folder = NightFolder(tmp_path / "night")
    wait_for(
        lambda: folder.result_file(cell_name("quits")).exists() and "waiting" in folder.log_tail(cell_name("late"))
    )
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT and err.count("\n") == 1
    assert f"1 of 2 cells done; `parity nightly {matrix} --out {tmp_path / 'night'}` continues" in err
    first = folder.result_file(cell_name("quits")).stat().st_mtime_ns
    (tmp_path / "go").touch()
    process = nightly(matrix, "--out", tmp_path / "night", **options)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 3 and [result.verdict for result in folder.results()] == ["inconclusive", "pass"]
    assert folder.result_file(cell_name("quits")).stat().st_mtime_ns == first, "a finished cell is not judged again"
    assert out.startswith(f"pass         2/2 {cell_name('late')}")


def wait_for(ready) -> None:
    deadline = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def run(cell, tiny_golden, tmp_path):
    """One cell's job with this device, in a process of its own."""

    def start(factory: str, limit: float = 60):
        job = Job(
            cell=CellJob(
                night="now",
                cell=cell.model_copy(update={"device": f"{DYING}:{factory}"}),
                golden=str(tiny_golden.folder),
            )
        )
        return run_job(job.model_dump_json(), tmp_path / "log", limit, environment(), str(ROOT))

    return start


ENDS = {
    "kills_its_job": ("ended by SIGKILL (out of memory, or ended from outside)", True),
    "leaves": ("SystemExit: the driver is too old", False),
}
MORE_ENDS = {
    "killed": ("ended its process by SIGKILL (out of memory, or ended from outside)", False),
    "out_of_memory": ("MemoryError: cannot allocate 64 GiB", False),
}


@pytest.mark.parametrize(
    ("factory", "words", "lost"),
    [(name, *seen) for name, seen in {**ENDS, **(MORE_ENDS if WHOLE else {})}.items()],
)
def test_an_end_without_a_result_is_one_sentence(factory, words, lost, run):
    answer = run(factory)
    assert words in answer.error and answer.lost == lost and answer.result is None


@by_night
def test_a_hang_ends_at_the_time_limit(run, tmp_path):
    answer = run("hangs", limit=6)
    assert answer.error == "it gave no result within 6 s and was ended" and not answer.lost
    assert "waiting for the runtime" in (tmp_path / "log").read_text()
