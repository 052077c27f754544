"""The never-speculated state by hand: its text, its rows, and how far a row is off."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.gates.rollback.baseline import (
    Baseline,
    GivenText,
    InjectedError,
    RecordingTap,
    repeated,
    row_errors,
    starts,
    window,
)
from tests.gates.scripted import EXPERTS, Scripted


def test_a_row_is_off_relative_to_the_rms_norm_of_all_true_rows():
    true = np.float32([[3, 4], [0, 0], [5, 12]])  # norms 5, 0 and 13: their RMS is sqrt(194 / 3)
    scale = (194 / 3) ** 0.5
    assert row_errors(true + np.float32([[0, 0], [3, 4], [0, 1]]), true) == pytest.approx([0, 5 / scale, 1 / scale])
    assert row_errors(true[1:] + 0, true, 1).tolist() == [0, 0]
    assert row_errors(true[:1], true, 1) == pytest.approx([5 / scale])
    wrong = true.copy()
    wrong[0, 0], wrong[2, 1] = np.nan, np.inf
    assert row_errors(wrong, true).tolist() == [np.inf, 0, np.inf]
    assert row_errors(true, true, 1).tolist() == [np.inf] * 3 and row_errors(true[:0], true[:, :1]).tolist() == [np.inf]
    assert row_errors(true[:0], true).tolist() == []
    cube = np.ones((2, 2, 2), np.float32)
    assert row_errors(cube * 2, cube).tolist() == [1, 1]


def test_a_prompt_is_repeated_from_its_end():
    assert repeated((1, 2, 3), 2) == [2, 3] and repeated((1, 2, 3), 3) == [1, 2, 3]
    assert repeated((1, 2, 3), 7) == [3, 1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize(
    ("edge", "most", "lengths"),
    [
        (None, 99, [2, 9, 26, 31, 40]),
        (16, 99, [2, 9, 10, 15, 24]),
        (16, 15, [2, 9, 10, 15]),
        (16, 14, [2, 9, 10]),
        (7, 99, [2, 9, 6, 15]),
        (16, 1, []),
    ],
)
def test_histories_start_on_both_sides_of_the_window(edge, most, lengths, monkeypatch):
    monkeypatch.setattr("parity.gates.rollback.baseline.window", lambda golden: edge)
    prompts = [SimpleNamespace(ids=(1, 2, 3)), SimpleNamespace(ids=(4, 5))]
    golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=prompts)))
    found = starts(golden, most)
    assert [len(ids) for _, ids in found] == lengths and [number for number, _ in found] == [
        n % 2 for n in range(len(lengths))
    ]
    assert [ids[-1] for _, ids in found] == [3 if n % 2 == 0 else 5 for n in range(len(lengths))]


@pytest.mark.parametrize(("size", "found"), [("32", 32), ("0", None), ("-1", None), ("null", None), ('"x"', None)])
def test_a_window_is_a_positive_number_of_the_config(size, found, tmp_path):
    (tmp_path / "config.json").write_text(f'{{"sliding_window": {size}}}')
    golden = SimpleNamespace(manifest=SimpleNamespace(model=SimpleNamespace(target=SimpleNamespace(path=tmp_path))))
    assert window(golden) == found
    golden.manifest.model.target.path = tmp_path / "missing"
    assert window(golden) is None


def test_a_tap_raises_where_it_is_told_and_forces_the_first_rows():
    tap = RecordingTap(1)
    tap("one", np.zeros(1))
    with pytest.raises(InjectedError, match="raised on purpose at two"):
        tap("two", np.zeros(1))
    assert (tap.fired, tap.count, list(tap.tensors)) == (True, 2, ["one", "two"])
    named = RecordingTap("two", {"one": np.array([7, 8])})
    given = np.array([1, 2, 3])
    assert named("one", given).tolist() == [7, 8, 3] and given.tolist() == [1, 2, 3] and not named.fired
    assert named.tensors["one"].tolist() == [1, 2, 3]
    with pytest.raises(InjectedError):
        named("two", given)


def caching(text, **changes) -> Scripted:
    """A scripted device that decodes what it is given by prefill, and hands over its caches."""
    device = Scripted(text, **changes)

    def prefill(ids, budget, tap):
        device.at = len(ids) - 2  # the prompt is of two ids
        tap(EXPERTS[0], np.tile([0, 1], (len(ids), 1)))
        tap("target.logits", np.float32([[position, 2, 1] for position in range(len(ids))])[device.shows :])
        return device._plain(device.at)

    device.shows = 0
    device.prefill = prefill
    device.draft = lambda tap: tap("drafter.logits", np.full((2, 3), device.at, np.float32))
    return device


def test_the_never_speculated_text_grows_by_prefills_and_ends_at_an_end_token():
    for eos, text in (((), [1, 2, 5, 7, 8]), ((7,), [1, 2, 5, 7])):
        baseline = Baseline(caching((5, 7, 8, 9), eos=eos), 3, (1, 2), 3)
        assert (baseline.text, baseline.more) == (text, len(text) - 2)
    assert GivenText(baseline, [4, 4]).asked == baseline.more + 2
    assert GivenText(baseline, [4, 4]).text == [1, 2, 5, 7, 4, 4] and GivenText(baseline, [4, 4]).more == 4


def test_the_state_is_of_one_prefill_and_drafts_follow_each_length(monkeypatch):
    monkeypatch.setattr("parity.gates.rollback.baseline.require_caches", lambda device, tensors: None)
    device = caching((5, 7, 8, 9), eos=(9,))
    baseline = Baseline(device, 3, (1, 2), 9)
    assert baseline.text == [1, 2, 5, 7, 8, 9]
    assert list(baseline.state) == [EXPERTS[0], "target.logits"] and len(baseline.state["target.logits"]) == 6
    assert [row[0] for row in baseline.state["target.logits"]] == [0, 1, 2, 3, 4, 5]
    assert {length: logits[0, 0] for length, logits in baseline.drafts.items()} == {2: 0, 3: 1, 4: 2}
    assert baseline.routes(1, 3)[EXPERTS[0]].tolist() == [[0, 1]] * 2
    baseline.state[EXPERTS[0]][2] = [1, 2]  # a router tie that fell otherwise in the third row
    del baseline.__dict__["drafts"]
    assert list(baseline.drafts) == [2]


def test_a_device_that_hides_its_logits_has_a_state_without_them(monkeypatch):
    monkeypatch.setattr("parity.gates.rollback.baseline.require_caches", lambda device, tensors: None)
    device = caching((5, 7, 8, 9))
    prefill = device.prefill
    device.prefill = lambda ids, budget, tap: prefill(
        ids, budget, lambda stage, x: x if "logits" in stage else tap(stage, x)
    )
    assert list(Baseline(device, 3, (1, 2), 3).state) == [EXPERTS[0]]


def test_a_device_that_shows_the_last_row_alone_is_asked_for_each(monkeypatch):
    monkeypatch.setattr("parity.gates.rollback.baseline.require_caches", lambda device, tensors: None)
    device = caching((5, 7, 8, 9))
    device.shows = -1
    baseline = Baseline(device, 3, (1, 2), 3)
    assert [row[0] for row in baseline.state["target.logits"]] == [4, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("tied", "token", "is_tie"),
    [(0.0, 0, True), (0.0, 1, False), (0.1, 1, False), (0.4, 1, False), (0.5, 1, True), (1.0, 1, True)],
)
def test_a_token_as_high_as_the_rows_best_ties(tied, token, is_tie, monkeypatch):
    monkeypatch.setattr("parity.gates.rollback.baseline.require_caches", lambda device, tensors: None)
    baseline = Baseline(caching((5, 7, 8, 9)), 3, (1, 2), 3, tied)
    assert baseline.tie(3, token) is is_tie  # logits 3, 2 and 1
    baseline.state.pop("target.logits")
    assert not baseline.tie(3, 0)
