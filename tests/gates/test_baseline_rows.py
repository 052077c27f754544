"""What a device that never speculated holds, by hand: its text, rows of it, ties, errors of rows, and prompts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.gates.rollback import baseline as of
from parity.gates.rollback.baseline import (
    FLOAT32_BOUND,
    Baseline,
    GivenText,
    InjectedError,
    RecordingTap,
    repeated,
    row_errors,
    starts,
)
from parity.gates.rollback.invariants import Coverage

IDS, NEXT, EOS = (1, 2), (5, 7, 8, 9, 6), 9
EXPERTS, LOGITS, CACHE = "target.layers.0.experts", "target.logits", "kv.target.0.k"


class Device:
    """Says one text; a row of its logits, cache and experts holds its position, and a draft's the length before it."""

    def __init__(self, last: bool = False, drafts: bool = True, tie_at: int | None = None):
        self.last, self.drafts, self.tie_at, self.asked = last, drafts, tie_at, []

    def describe(self):
        return SimpleNamespace(eos=(EOS,), name="toy")

    def prefill(self, ids, budget, tap):
        self.asked.append((len(ids), budget))
        rows = np.arange(len(ids), dtype=np.float32)[:, None]
        logits = rows + 100 * len(ids)
        tap(LOGITS, logits[-1:] if self.last else logits)
        tap(EXPERTS, (rows + (len(ids) == self.tie_at)).astype(np.int64))
        tap(CACHE, rows)
        tap("target.embed", rows)
        return NEXT[len(ids) - len(IDS)]

    def draft(self, tap):
        if self.drafts:
            tap("drafter.logits", np.full((3, 2), float(self.asked[-1][0]), np.float32))


@pytest.fixture(autouse=True)
def caches(monkeypatch):
    monkeypatch.setattr(of, "require_caches", lambda device, tensors: None)


@pytest.mark.parametrize(("more", "text"), [(0, []), (1, [5]), (3, [5, 7, 8]), (4, [5, 7, 8, 9]), (5, [5, 7, 8, 9])])
def test_a_text_has_as_many_tokens_as_are_asked_for_up_to_an_end(more, text):
    made = Baseline(Device(), 4, IDS, more)
    assert made.text == [*IDS, *text] and made.more == len(text) and made.asked == more
    assert made.device.asked == [(2 + number, 2) for number in range(len(text))]


def test_a_prompt_that_ends_in_an_end_token_is_continued():
    assert Baseline(Device(), 0, (1, EOS), 2).text == [1, EOS, 5, 7]


def test_its_state_is_of_one_prefill_over_the_whole_text():
    made = Baseline(Device(), 4, IDS, 3)
    assert {*made.state} == {LOGITS, EXPERTS, CACHE} and made.device.asked[-1] == (5, 1)
    assert made.state[LOGITS][:, 0].tolist() == [500, 501, 502, 503, 504]
    assert {stage: rows[:, 0].tolist() for stage, rows in made.routes(1, 3).items()} == {EXPERTS: [1, 2]}
    assert made.state is made.state and made.compute() is None


def test_where_a_prefill_shows_its_last_row_each_is_from_a_prefill_up_to_there():
    """Rows inside the prompt hold the last one."""
    made = Baseline(Device(last=True), 4, IDS, 3)
    assert made.text and made.state[LOGITS][:, 0].tolist() == [504, 201, 302, 403, 504]


def test_drafts_are_those_of_every_length_but_where_a_tie_fell_otherwise():
    made = Baseline(Device(), 4, IDS, 3)
    assert {length: logits[0, 0] for length, logits in made.drafts.items()} == {2: 2, 3: 3, 4: 4}
    assert [*Baseline(Device(tie_at=3), 4, IDS, 3).drafts] == [2, 4]
    assert Baseline(Device(drafts=False), 4, IDS, 3).drafts == {}
    assert [*Baseline(Device(), 4, IDS, 9).drafts] == [2, 3, 4]  # none behind the end


@pytest.mark.parametrize(
    ("gap", "tied", "tie"), [(0, 0, True), (0.999, 0, True), (1.001, 0, False), (1.9, 2 * FLOAT32_BOUND, True)]
)
def test_a_token_ties_within_so_much_of_the_rows_rms(gap, tied, tie):
    """A row of 1,000 and its like: a RMS of 1,000."""
    made = Baseline(Device(), 4, IDS, 0, tied)
    row = np.array([1000.0, 1000.0, -1000.0, 1000.0])
    row[1] -= gap * 1000 * FLOAT32_BOUND
    made.__dict__["state"] = {LOGITS: np.stack([row * 0, row])}
    assert made.tie(1, 1) is tie and made.tie(1, 0) and not made.tie(1, 2)
    made.__dict__["state"] = {}
    assert not made.tie(1, 0)


def test_a_given_text_is_the_greedy_one_and_more_without_drafts():
    made = GivenText(Baseline(Device(), 4, IDS, 2, 0.5), (3, 4))
    assert (made.text, made.asked, made.prompt, made.tied) == ([1, 2, 5, 7, 3, 4], 4, 4, 0.5)
    assert made.more == 4 and made.drafts == {}


def test_a_row_is_off_by_its_error_over_the_rms_norm_of_all_true_rows():
    true = np.array([[3.0, 4.0], [0, 0], [0, 5]], np.float32)  # norms 5, 0, 5
    rms = (50 / 3) ** 0.5
    assert row_errors(true, true).tolist() == [0, 0, 0]
    assert row_errors(true + np.array([[0, 1], [3, 4], [0, 0]]), true) == pytest.approx([1 / rms, 5 / rms, 0])
    assert row_errors(true[1:] + np.array([[0, 1], [0, 0]]), true, 1) == pytest.approx([1 / rms, 0])
    heads = np.stack([true, true], axis=1)
    assert row_errors(heads + 1, heads) == pytest.approx([2 / (2 * 50 / 3) ** 0.5] * 3)
    for odd in (np.nan, np.inf):
        assert row_errors(np.where(true == 3, odd, true), true).tolist() == [np.inf, 0, 0]


@pytest.mark.parametrize(
    ("rows", "start", "count"), [((2, 3), 0, 2), ((2, 2), 2, 2), ((0, 2), 9, 0), ((4, 2), 0, 4), ((0, 3), 0, 1)]
)
def test_rows_of_another_shape_or_beyond_the_text_are_infinitely_off(rows, start, count):
    found = row_errors(np.zeros(rows), np.ones((3, 2)), start)
    assert found.tolist() == [np.inf] * count


def golden(*lengths: int):
    prompts = [SimpleNamespace(ids=tuple(range(length))) for length in lengths]
    return SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))


@pytest.mark.parametrize(
    ("window", "most", "lengths"),
    [(20, 99, [2, 9, 14, 19, 28]), (20, 28, [2, 9, 14, 19, 28]), (20, 27, [2, 9, 14, 19]),
     (None, 99, [2, 9, 26, 31, 40]),
     (8, 99, [2, 9, 2, 7, 16]), (7, 99, [2, 9, 6, 15]), (20, 1, [])],
)  # fmt: skip
def test_prompts_are_of_several_lengths_around_the_window(window, most, lengths, monkeypatch):
    monkeypatch.setattr(of, "window", lambda golden: window)
    found = starts(golden(4, 50), most)
    assert [len(ids) for _, ids in found] == lengths and [number for number, _ in found] == [
        n % 2 for n in range(len(found))
    ]


@pytest.mark.parametrize(("length", "ids"), [(2, [8, 9]), (3, [7, 8, 9]), (4, [9, 7, 8, 9]), (6, [7, 8, 9] * 2)])
def test_a_prompt_is_said_as_often_as_its_length_takes(length, ids):
    assert repeated((7, 8, 9), length) == ids


@pytest.mark.parametrize(("config", "window"), [({"sliding_window": 7}, 7), ({"sliding_window": 0}, None), ({}, None),
                                                ({"sliding_window": "7"}, None), ({"sliding_window": None}, None),
                                                ({"sliding_window": 1}, 1)])  # fmt: skip
def test_a_window_is_a_whole_number_of_the_config(config, window, monkeypatch):
    monkeypatch.setattr(of, "config_of", lambda folder: config)
    target = SimpleNamespace(path="/t")
    assert of.window(SimpleNamespace(manifest=SimpleNamespace(model=SimpleNamespace(target=target)))) == window


def test_a_tap_records_forces_true_rows_and_raises_where_it_is_told():
    rows = np.array([[1, 2], [3, 4], [5, 6]])
    tap = RecordingTap(routes={EXPERTS: np.array([[9, 8]])})
    back = tap(EXPERTS, rows)
    assert back.tolist() == [[9, 8], [3, 4], [5, 6]] and tap.tensors[EXPERTS].tolist() == rows.tolist()
    assert tap(LOGITS, rows) is rows and tap.count == 2 and not tap.fired
    for at in (1, LOGITS):
        tap = RecordingTap(at)
        tap(EXPERTS, rows)
        with pytest.raises(InjectedError, match=rf"^raised on purpose at {LOGITS}$"):
            tap(LOGITS, rows)
        assert tap.fired and [*tap.tensors] == [EXPERTS, LOGITS] and tap.count == 2


def test_before_anything_is_compared_nothing_is_the_worst():
    assert Coverage().worst == (0.0, "nothing") and (Coverage().rounds, Coverage().longest, Coverage().rows) == (
        0,
        0,
        0,
    )
