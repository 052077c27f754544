"""A hypothesis that holds for some rows only: named with the condition, its clean rows staying clean."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from ml_dtypes import bfloat16

from parity.api import diagnose_device
from parity.compare.predicate import Predicate
from parity.compare.rows import StageRows
from parity.diagnose.conditional import RowFacts, chosen_rows, only
from parity.diagnose.hypothesis import NotComparable
from parity.diagnose.ranking import Trial
from parity.diagnose.row_evidence import row_evidence
from parity.diagnose.search.conditions import ConditionSearch
from parity.diagnose.search.stage_trials import StageTrials
from parity.diagnose.trials import PromptTrials
from parity.stages import declared
from tests.diagnose.test_honest import Q, red
from tests.diagnose.toys import POLICY, explained, scaled
from tests.meta import plants as p

pytestmark = pytest.mark.usefixtures("contained")


@pytest.fixture
def contained(monkeypatch):
    """In these worlds nothing travels from stage to stage, whatever their run says it is."""
    monkeypatch.setattr(PromptTrials, "contained", True)


OTHER = scaled("other", Q, 1.7)


def enlarged(where, times=1.3):
    """The stage is so many times what it should be in these rows: `where(round, rows)` is bool [rows]."""

    def plant(pair) -> None:
        for tensors, place in p.each(pair.run, Q):
            rows = where(place[0], len(tensors[place]))[:, None, None]
            value = tensors[place].astype(np.float32)
            tensors[place] = np.where(rows, value * np.float32(times), value)

    return plant


CASES = {
    "every 2nd position, from 1 on": lambda round_, rows: np.full(rows, round_ == 0) & (np.arange(rows) % 2 == 1),
    "from round 2 on": lambda round_, rows: np.full(rows, round_ >= 2),
    "row 0 of every pass": lambda round_, rows: np.arange(rows) == 0,
}


@pytest.mark.parametrize("says", CASES)
def test_a_hypothesis_is_named_with_the_condition_that_it_holds_under(says, tmp_path):
    found = explained(red(enlarged(CASES[says]), tmp_path), [OTHER, scaled("larger", Q, 1.3)])
    (cause,) = found.causes
    assert cause.hypothesis.startswith("larger only ") and says in cause.says and cause.whole, cause
    assert found.unexplained is None


def test_what_holds_everywhere_is_named_without_a_condition(tmp_path):
    found = explained(
        red(enlarged(lambda round_, rows: np.ones(rows, bool)), tmp_path), [OTHER, scaled("larger", Q, 1.3)]
    )
    assert [cause.hypothesis for cause in found.causes] == ["larger"]


def test_rows_that_have_nothing_in_common_are_no_condition(tmp_path):
    chance = np.random.default_rng(5)
    found = explained(
        red(enlarged(lambda round_, rows: chance.random(rows) < 0.4), tmp_path), [scaled("larger", Q, 1.3)]
    )
    assert not found.causes and found.unexplained.stage == Q, found.causes


def test_a_hypothesis_that_explains_no_row_is_not_held_to_any(tmp_path):
    found = explained(red(enlarged(CASES["from round 2 on"]), tmp_path), [OTHER])
    assert not found.causes


def test_another_number_of_rows_is_chosen_for_whole_passes_alone(tmp_path):
    golden = red(enlarged(CASES["from round 2 on"]), tmp_path).golden
    place, facts = (1, Q), RowFacts(golden)
    true, fewer = {place: np.zeros((5, 4, 2))}, {place: np.ones((3, 4, 2))}
    later = Predicate("later", lambda facts: facts.round > 0)
    assert chosen_rows(facts, later, true, fewer)[place].shape == (3, 4, 2)
    with pytest.raises(NotComparable):
        chosen_rows(facts, Predicate("row 0", lambda facts: facts.index == 0), true, fewer)


def test_a_condition_of_few_rows_is_said_to_be_one():
    where = Predicate("round 4 only", lambda facts: facts.round == 4)
    assert "few rows" in only(OTHER, where, believed=False).describe(1.7)
    assert only(OTHER, where).describe(1.7).endswith("only where: round 4 only")


def rows_of(changed: np.ndarray) -> StageRows:
    """Eight rows of a stage that rounds as bfloat16 does, the device's 1.00005 times as large in some."""
    golden = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    device = np.where(changed[:, None], golden * np.float32(1.00005), golden)
    numbers = np.arange(8)
    floor = golden.astype(bfloat16).astype(np.float32)
    return StageRows(declared(1, 1)[p.FFN], golden, device, floor, np.zeros(8, int), np.zeros(8, int), numbers)


@pytest.mark.parametrize(("precision", "explained_rows"), [("float32", 4), ("bfloat16", 0)])
def test_rows_of_a_float32_run_are_judged_by_what_float32_rounds(precision, explained_rows):
    """An error below the golden's bfloat16 noise: float32 runs were searched for no condition."""
    odd, none = np.arange(8) % 2 == 1, np.zeros(8, bool)
    before, after = rows_of(odd), rows_of(none)
    told = row_evidence(before, after, None, precision)
    assert told.explained.sum() == explained_rows and not told.spoilt.any()


def test_an_error_that_no_single_row_shows_is_not_the_prefills_alone(tmp_path):
    """Every row is off by less than its bound: no row tells that later passes are right."""
    failing = red(enlarged(lambda round_, rows: np.ones(rows, bool), 1.004), tmp_path)
    trials = PromptTrials(failing.golden, failing.run, failing.number, POLICY, lambda precision: None)
    first = trials.residuals((), trials.rounds)[Q]
    assert first.red and trials.failing_passes(first) == ""


@pytest.mark.parametrize("later", [False, True])
def test_what_a_hypothesis_does_not_determine_is_no_error_that_it_leaves(later):
    """Of the rest each element is taken with it or without it, over the rounds in which it was judged."""
    gap = np.array([1.0, 1.0, 0.0, 2.0])
    judged = [np.zeros(2) if later else gap, gap if later else np.zeros(2)]
    trials = SimpleNamespace(gap=lambda known, rounds, stage: judged[rounds], rounds=1)
    stage = StageTrials.__new__(StageTrials)
    vars(stage).update(trials=trials, known=(), round=0, first=SimpleNamespace(stage=Q))
    search = ConditionSearch(stage)
    sample = np.array([np.nan, 1.0, 5.0, 2.0])
    assert search._left(Trial((), None, SimpleNamespace(error=0.1), sample=sample)) == 0.0
    assert search._left(Trial((), None, SimpleNamespace(error=0.1), sample=sample[:3])) == inf
    half = np.array([np.nan, 0.5, 5.0, 2.0])
    assert search._left(Trial((), None, SimpleNamespace(error=0.1), sample=half)) == pytest.approx(0.5 / 5**0.5)
    nothing = np.array([1.0, np.nan, np.nan, np.nan]) * np.nan
    assert search._left(Trial((), None, SimpleNamespace(error=0.1), sample=nothing)) == inf


def test_a_condition_that_one_prompt_meets_in_every_row_is_told_by_the_others(shallow_golden):
    """All drafts of the longer prompt are wrong, and few or none of the shorter one's."""
    device = "parity.device.faults:only,fault=d2t-off-by-one,where=cached > 50"
    assert [len(prompt.ids) for prompt in shallow_golden.manifest.case.prompts] == [53, 47]
    found = diagnose_device(shallow_golden, device, limit=60)
    assert [cause.hypothesis.split(" only ")[0] for cause in found.causes] == ["d2t-plus-one"], found
    assert "; only where: " in found.causes[0].says and not found.unexplained
