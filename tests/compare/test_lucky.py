"""A few rows alone beyond a floor of one rounding are judged by one of several; a defect of more is not asked twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parity.compare import compare
from parity.compare.basis import Basis
from parity.compare.lucky import FEW, ROUNDINGS, with_more_roundings
from parity.compare.rebased import RebasedGolden
from parity.compare.report import Place
from parity.errors import Inconclusive
from parity.golden.views import DumpView
from parity.policy import read_policy
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size

STAGE = "target.layers.0.router_logits"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    return write(clean(Size(prompts=(40, 30))), tmp_path_factory.mktemp("pair"))


class Off(DumpView):
    """A dump with rows of one stage that are further off: of a run the device's, of a golden the floor's."""

    def __init__(self, dump, variant: str, rows: list[int], times: float, golden) -> None:
        self.dump, self.variant, self.off, self.times, self.golden = dump, variant, rows, times, golden
        super().__init__(dump.folder, dump.manifest, dump.declared, dump.rows, dump.parts)

    def stored(self, variant, prompt, round_, stage):
        value = self.dump.stored(variant, prompt, round_, stage)
        if (variant, prompt, round_, stage) != (self.variant, 1, 0, STAGE):
            return value
        true = self.golden.contents("float32", prompt, round_, stage).astype(np.float32)
        wide = np.array(value, np.float32)
        size = np.linalg.norm(true, axis=1, keepdims=True) / np.sqrt(true.shape[1])
        wide[self.off] = (true + self.times * 2e-3 * size)[self.off]
        return wide.astype(value.dtype)


def judged(dumps, rows, times, wider=True):
    golden, run = dumps
    asked = []

    def rerun(of, seen, prompts, floor, roundings):
        asked.append((tuple(prompts), roundings))
        return Off(golden, "bfloat16", rows, times * 0.6 if wider else 0.0, golden)

    report = compare(golden, Off(run, "bfloat16", rows, times, golden), read_policy(None, "bfloat16"), rerun=rerun)
    return report, asked


def test_a_row_alone_is_judged_by_the_floor_of_several_roundings(dumps):
    times = next(times for times in np.arange(1.0, 40.0, 0.5) if judged(dumps, [7], times, wider=False)[1])
    report, asked = judged(dumps, [7], times)
    assert asked == [((1,), ROUNDINGS)] and report.verdict != "fail" and len(report.lucky) == 1
    report, asked = judged(dumps, [7], times, wider=False)
    assert asked and report.verdict == "fail" and report.first.stage == STAGE, "a floor that stays: the row is wrong"


@pytest.mark.parametrize(("rows", "times"), [([7], 200.0), (list(range(FEW + 3)), 12.0)], ids=["by much", "more rows"])
def test_more_than_luck_is_not_asked_twice(rows, times, dumps):
    report, asked = judged(dumps, rows, times)
    assert report.verdict == "fail" and not asked and not report.lucky


def test_where_the_reference_cannot_run_again_the_row_fails(dumps):
    golden, run = dumps
    times = next(times for times in np.arange(1.0, 40.0, 0.5) if judged(dumps, [7], times, wider=False)[1])
    off = Off(run, "bfloat16", [7], times, golden)

    def refuses(*arguments):
        raise Inconclusive("no checkpoints here")

    for rerun in (None, refuses):
        assert compare(golden, off, read_policy(None, "bfloat16"), rerun=rerun).verdict == "fail"


def test_only_chained_bfloat16_asks(dumps):
    golden, run = dumps
    report = compare(golden, run, read_policy(None, "bfloat16"))
    (one,) = (result for result in report.stages if result.stage == STAGE)
    row = Place(STAGE, 1, 0, 7)
    bounds = {"worst_row": (3.0, 3.0)}
    doubtful = replace(one, verdict="fail", x={"worst_row": 3.1}, bounds=bounds, bad_rows=1, first=row, worst=row)
    asked = []

    def rerun(*arguments):
        asked.append(arguments)
        return golden

    seen = Off(run, "bfloat16", [], 0.0, golden)  # the run with the experts that it hides
    basis = with_more_roundings(golden, run, [doubtful], Basis(golden, seen), rerun)[0]
    assert len(asked) == 1 and asked[0][1] is seen and isinstance(basis.golden, RebasedGolden)
    for change in ({"mode": "local"}, {"precision": "float32"}):
        other = Off(run, "bfloat16", [], 0.0, golden)
        case = run.manifest.case.model_copy(update=change)
        other.manifest = run.manifest.model_copy(update={"case": case})
        assert with_more_roundings(golden, other, [doubtful], Basis(golden, other), rerun)[1] == ()
    assert len(asked) == 1
