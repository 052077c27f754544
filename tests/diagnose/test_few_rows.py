"""What a few rows refuse: nothing that all rows would let be said, and nearly everything else."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from parity.diagnose.components import products
from parity.diagnose.components.few_rows import FewRows
from parity.diagnose.components.products import in_products
from parity.diagnose.components.wrong import DOWN_TO_NOISE, WrongRows
from parity.diagnose.ranking import Trial
from parity.diagnose.trials import PromptTrials
from tests.diagnose.made_up_products import WHOLE, Toy, W, X, of_the_next_row
from tests.diagnose.made_up_rows import GOLDEN, ROWS, WIDTH, random, wrong
from tests.diagnose.test_honest import Q, red
from tests.diagnose.test_search import times
from tests.diagnose.toys import POLICY, Replay, scaled


class Many(Toy):
    """The next row among changes that are none, each of which counts the rows that it is made for."""

    made: ClassVar[list[int]] = []

    def others(self):
        for number in range(20):
            yield f"change {number}", self._counted(random(*self.x.shape, seed=20 + number))
        yield "the next row", self._counted(np.roll(self.x, -1, axis=0))

    def _counted(self, x):
        def rows(numbers):
            self.made.append(len(numbers))
            return x[numbers]

        return rows


def every_row(of):
    return FewRows(of, np.arange(len(of.numbers)))


PLAIN = Many(WHOLE, None, parts=())
DEVICES = {
    "all heads": (Many(X, W), WHOLE, of_the_next_row()),
    "one head": (Many(X, W), WHOLE, of_the_next_row(np.s_[32:48])),
    "no head": (Many(X, W), WHOLE, WHOLE + random(*WHOLE.shape, seed=4)),
    "rows": (PLAIN, WHOLE, np.roll(WHOLE, -1, axis=0)),
    "other rows": (PLAIN, WHOLE, WHOLE + random(*WHOLE.shape, seed=4)),
    "rows and noise": (PLAIN, WHOLE, np.roll(WHOLE, -1, axis=0) + 0.02 * random(*WHOLE.shape, seed=5)),
}


@pytest.mark.parametrize("name", DEVICES)
def test_the_same_is_read_as_where_every_change_is_made_for_all_rows(name, monkeypatch):
    product, golden, device = DEVICES[name]
    Many.made, told = [], []
    for of in (FewRows.of, every_row):
        monkeypatch.setattr(products.FewRows, "of", of)
        told.append([str(one) for one in in_products(wrong(golden, device), product) if one is not None and one.whole])
        Many.made.append(0)
    few, every = Many.made[: Many.made.index(0)], Many.made[Many.made.index(0) + 1 : -1]
    assert told[0] == told[1] and bool(told[0]) is ("other" not in name and name != "no head")
    assert sum(few) < sum(every) / 3 and max(every) == ROWS


def test_what_happened_is_not_refused_and_what_did_not_is():
    error = random(ROWS, WIDTH, seed=3) * np.linspace(0.1, 3, ROWS)[:, None]
    few = FewRows.of(wrong(GOLDEN, GOLDEN + error))
    assert len(few.places) < ROWS / 4 and not few.all
    some = error[few.numbers]
    assert not few.refuse(some) and not few.refuse(0.999 * some) and few.refuse(0.9 * some) and few.refuse(-some)
    halves = [np.where(np.arange(WIDTH) < 48, some, 0.0), np.where(np.arange(WIDTH) < 48, 0.0, some)]
    assert not few.refuse_any_of(halves) and few.refuse_any_of(halves[:1])
    assert not few.refuse_any_of([np.full_like(some, np.nan)]) and not few.refuse(np.full_like(some, np.nan))


def test_where_the_error_is_little_more_than_noise_no_row_is_left_out():
    noise = np.linalg.norm(GOLDEN, axis=1, keepdims=True) / np.sqrt(WIDTH) * 2e-3
    of = WrongRows.of(wrong(GOLDEN, GOLDEN + 1.0).rows, "bfloat16", whole=True)
    faint = WrongRows(
        of.rows, GOLDEN, GOLDEN + DOWN_TO_NOISE * noise, noise, of.tail, of.columns, of.numbers, of.precision
    )
    assert FewRows.of(faint).all


def weighed(folder, monkeypatch, whole):
    """Trials of what explains, half explains, moves nothing much and spoils, and the comparisons made for them."""
    failing = red(times(1.1), folder)
    trials = PromptTrials(
        failing.golden, failing.run, failing.number, POLICY, lambda precision: Replay(failing.golden, precision)
    )
    compared, judged = [], PromptTrials._residuals
    with monkeypatch.context() as patch:
        if whole:
            patch.setattr(PromptTrials, "_left_as_it_was", lambda *of: None)
        patch.setattr(PromptTrials, "_residuals", lambda *of: compared.append(of) or judged(*of))
        made = []
        for value in (1.1, 1.05, 1.002, 1.0005, 0.9, 1.5):
            assumed = ((scaled("factor", Q, value), value),)
            change = trials.weigh((), assumed, 1, [Q], last=Q)
            made.append(Trial(assumed, change.before[Q], change.after[Q], sample=change.sample))
    return made, len(compared)


def test_a_trial_that_takes_nothing_off_is_told_by_its_size_as_by_a_comparison(tmp_path, monkeypatch):
    (short, few), (long, every) = (weighed(tmp_path / str(whole), monkeypatch, whole) for whole in (False, True))
    assert [one.settles for one in short] == [one.settles for one in long] == [True, *[False] * 5]
    assert np.allclose([one.left for one in short], [one.left for one in long], rtol=1e-5)
    assert np.allclose([one.explained for one in short], [one.explained for one in long], atol=1e-5)
    assert every == few + 3, "a comparison each for what leaves the error as it was, or more"
