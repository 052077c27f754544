"""A cell measured again within its night: run, kept, recorded, counted; never instead of its own result."""

from __future__ import annotations

import json
import signal
from concurrent.futures import Future
from xml.etree import ElementTree

import pytest

from parity.cli.night_end import end, interruptible
from parity.compare.report import exit_code
from parity.endings import Terminated
from parity.errors import UsageError
from parity.history import Suspicion, append, load
from parity.nightly.folder import NightFolder
from parity.nightly.metrics import of_cell
from parity.nightly.outputs import verdict_of, write_outputs
from parity.nightly.process import Answer
from parity.nightly.records import Cell, CellAxes, CellResult, Night
from parity.nightly.run import NightRun


class Engine:
    """Answers at once: a golden, then these verdicts one after the other."""

    name = "local"

    def __init__(self, *verdicts: str):
        self.verdicts, self.jobs = list(verdicts), []

    def submit(self, job, log, rank) -> Future[Answer]:
        found: Future[Answer] = Future()
        found.set_result(Answer(golden="golden") if job.golden else self._judged(job.cell))
        self.jobs.append(job)
        return found

    def _judged(self, job) -> Answer:
        verdict = self.verdicts.pop(0)
        if not verdict:
            return Answer(error="it died")
        first = "" if verdict == "pass" else "target.embed, prompt 0, round 0"
        return Answer(
            result=CellResult(
                night=job.night,
                cell=job.cell,
                verdict=verdict,
                started="",
                seconds=1.0,
                first=first,
                metrics=tuple(of_cell(verdict, 1.0)),
            )
        )

    def place(self, answer: Answer) -> str:
        return answer.golden


@pytest.fixture
def cell() -> Cell:
    """A cell that nothing runs."""
    axes = CellAxes(case="one", device="numpy", family="peagle", k=2, tp=1, policy="bfloat16")
    return Cell(
        axes=axes, target="t", drafter="d", prompts="p", max_new_tokens=4, device="numpy", gates=("provenance",)
    )


@pytest.fixture
def plan(cell) -> Night:
    return Night(
        name="20261121T020000.000", started="2026-11-21T02:00:00+00:00", commit="", dirty=False, matrix="m",
        matrix_digest="", engine="local",
        machine="x86_64", cells=(cell,),
    )  # fmt: skip


def run(folder: NightFolder, engine: Engine, again) -> NightFolder:
    NightRun(folder, engine, engine, "", lambda result: None, again).run(folder.night.cells)
    return folder


def twice(found) -> bool:
    return len(found) <= 2


def test_a_cell_is_run_again_as_often_as_it_is_asked_for(plan, cell, tmp_path):
    engine = Engine("pass", "pass", "pass")
    folder = run(NightFolder.start(tmp_path / "night", plan), engine, twice)
    assert [one.cell.repeat for one in engine.jobs if one.cell] == [0, 1, 2]
    assert [one.cell.cell.diagnose for one in engine.jobs if one.cell] == [True, False, False]
    assert [one.repeat for one in folder.measured()] == [0, 1, 2]
    assert len(folder.results()) == 1 and folder.missing() == ()
    assert verdict_of(folder) == "pass"


@pytest.mark.parametrize(
    ("second", "verdict"), [("fail", "fail"), ("inconclusive", "inconclusive"), ("", "inconclusive")]
)
def test_a_repeat_that_does_not_pass_is_the_night_s_verdict_too(second, verdict, plan, cell, tmp_path):
    folder = run(NightFolder.start(tmp_path / "night", plan), Engine("pass", second), lambda found: len(found) == 1)
    assert [one.verdict for one in folder.results()] == ["pass"]
    assert verdict_of(folder) == verdict
    write_outputs(folder)
    cases = {
        case.get("name"): [child.tag for child in case]
        for suite in ElementTree.parse(folder.path / "junit.xml").getroot()
        for case in suite
    }
    assert cases["again 1"] == ["failure" if second == "fail" else "error"]


@pytest.mark.parametrize(
    ("second", "code", "mark", "word"),
    [("fail", 1, "::error", "fail"), ("inconclusive", 3, "::warning", "inconclusive"), ("", 3, "::warning", "broken")],
)
def test_every_output_says_what_a_repeat_made_red(second, code, mark, word, plan, cell, tmp_path, capsys):
    folder = run(NightFolder.start(tmp_path / "night", plan), Engine("pass", second, "pass"), twice)
    assert end(folder, "", True, tmp_path / "night.json") == code
    lines = capsys.readouterr().out.splitlines()
    why = "it died" if second == "" else "target.embed"
    assert (
        lines[-1].startswith(
            f"nightly verdict: {second or 'inconclusive'} (1 {word}); {cell.name}, measured again (1): "
        )
        and why in lines[-1]
    )
    assert [line.startswith(mark) and why in line for line in lines if line.startswith("::")] == [True]
    (told,) = json.loads((tmp_path / "night.json").read_text())["cells"]
    assert (told["verdict"], told["repeat"]) == (second or "inconclusive", 1) and why in told["first"] + told["error"]
    (kept,) = map(json.loads, (folder.path / "results.jsonl").read_text().splitlines())
    assert kept["repeat"] == 1
    assert f"{plan.name}: {second or 'inconclusive'}</title>" in (folder.path / "report.html").read_text()


def test_a_repeat_as_good_as_its_cell_is_not_named(plan, tmp_path, capsys):
    folder = run(NightFolder.start(tmp_path / "night", plan), Engine("fail", "fail", "pass"), twice)
    assert end(folder, "", False, None) == 1
    assert "measured again" not in capsys.readouterr().out.splitlines()[-1]


def test_nothing_is_suspected_without_a_past_or_behind_a_failure(plan, cell, tmp_path):
    found = CellResult(night=plan.name, cell=cell, verdict="fail", started="", seconds=1.0)
    assert not Suspicion(str(tmp_path / "nowhere"), plan, 16)((found.model_copy(update={"verdict": "pass"}),))
    append(str(tmp_path / "h"), plan.model_copy(update={"name": "20261120T020000.000"}), [found])
    assert not Suspicion(str(tmp_path / "h"), plan, 16)((found,))


@pytest.mark.parametrize(
    ("error", "number"), [(KeyboardInterrupt(), signal.SIGINT), (Terminated(signal.SIGTERM), signal.SIGTERM)]
)
def test_an_interrupted_night_says_how_it_goes_on(error, number, plan, tmp_path, capsys):
    folder = NightFolder.start(tmp_path / "night", plan)
    with pytest.raises(SystemExit) as ended, interruptible(folder, "parity nightly"):
        raise error
    assert ended.value.code == 128 + number
    assert (
        capsys.readouterr().err
        == "parity: interrupted with 0 of 1 cells done; `parity nightly` continues with the others\n"
    )


def test_outputs_that_cannot_be_written_take_nothing_from_the_history(plan, tmp_path, monkeypatch, capsys):
    def refuse(folder):
        raise OSError("no space left")

    folder = run(NightFolder.start(tmp_path / "night", plan), Engine("pass"), lambda found: False)
    monkeypatch.setattr("parity.nightly.outputs.write_outputs", refuse)
    assert end(folder, str(tmp_path / "past"), False, None) == 3
    said = capsys.readouterr()
    assert (
        "results.jsonl and junit.xml are not written: no space left" in said.err
        and said.out.splitlines()[-1] == "nightly verdict: pass (1 pass)"
    )
    assert list(load(str(tmp_path / "past"))["night"].unique()) == [plan.name]


@pytest.mark.parametrize("verdict", ["passed", "not judged", ""])
def test_a_verdict_that_there_is_not_is_one_sentence_and_no_pass(verdict, plan, cell, tmp_path):
    folder = run(NightFolder.start(tmp_path / "night", plan), Engine("pass"), lambda found: False)
    file = folder.result_file(cell.name)
    file.write_text(file.read_text().replace('"verdict": "pass"', f'"verdict": "{verdict}"'))
    with pytest.raises(UsageError, match="is no record of a night: verdict: Input should be 'pass'"):
        verdict_of(folder)
    assert exit_code(verdict) == 3


def test_a_night_that_could_not_begin_leaves_no_folder_in_the_way(plan, tmp_path, monkeypatch):
    def refuse(path, data):
        raise OSError(28, "no space left")

    with monkeypatch.context() as full:
        full.setattr("parity.files.write_whole", refuse)
        with pytest.raises(UsageError, match=r"night/night\.json cannot be written .no space left."):
            NightFolder.start(tmp_path / "night", plan)
    assert [*tmp_path.iterdir()] == []
    assert NightFolder.start(tmp_path / "night", plan).night.model_dump() == plan.model_dump()
