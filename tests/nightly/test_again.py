"""A cell measured again within its night: run, kept, recorded, counted; never instead of its own result."""

from __future__ import annotations

from concurrent.futures import Future
from xml.etree import ElementTree

import pytest

from parity.history import append
from parity.nightly.folder import NightFolder
from parity.nightly.jobs import Answer
from parity.nightly.outputs import verdict_of, write_outputs
from parity.nightly.records import Axes, Cell, CellResult, Night
from parity.nightly.run import NightRun
from parity.nightly.suspicion import Suspicion


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
        return Answer(result=CellResult(night=job.night, cell=job.cell, verdict=verdict, started="", seconds=1.0)) if verdict else Answer(error="it died")

    def place(self, answer: Answer) -> str:
        return answer.golden


@pytest.fixture
def cell() -> Cell:
    """A cell that nothing runs."""
    axes = Axes(case="one", device="numpy", family="peagle", k=2, tp=1, policy="bfloat16")
    return Cell(axes=axes, target="t", drafter="d", prompts="p", max_new_tokens=4, device="numpy", gates=("provenance",))


@pytest.fixture
def plan(cell) -> Night:
    return Night(
        name="20261121T020000.000", started="2026-11-21T02:00:00+00:00", commit="", dirty=False, matrix="m", matrix_digest="", engine="local",
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
    assert verdict_of(folder, folder.results()) == "pass"


@pytest.mark.parametrize(("second", "verdict"), [("fail", "fail"), ("inconclusive", "inconclusive"), ("", "inconclusive")])
def test_a_repeat_that_does_not_pass_is_the_night_s_verdict_too(second, verdict, plan, cell, tmp_path):
    folder = run(NightFolder.start(tmp_path / "night", plan), Engine("pass", second), lambda found: len(found) == 1)
    assert [one.verdict for one in folder.results()] == ["pass"]
    assert verdict_of(folder, folder.results()) == verdict
    write_outputs(folder)
    cases = {case.get("name"): [child.tag for child in case] for suite in ElementTree.parse(folder.path / "junit.xml").getroot() for case in suite}
    assert cases["again 1"] == ["failure" if second == "fail" else "error"]


def test_nothing_is_suspected_without_a_past_or_behind_a_failure(plan, cell, tmp_path):
    found = CellResult(night=plan.name, cell=cell, verdict="fail", started="", seconds=1.0)
    assert not Suspicion(str(tmp_path / "nowhere"), plan, 16)((found.model_copy(update={"verdict": "pass"}),))
    append(str(tmp_path / "h"), plan.model_copy(update={"name": "20261120T020000.000"}), [found])
    assert not Suspicion(str(tmp_path / "h"), plan, 16)((found,))
