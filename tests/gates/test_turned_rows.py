"""Rotations by hand: what a tap of one token keeps, which rows are turned wrongly, and what a wrong rotation is."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from parity.errors import NotOffered
from parity.families import MODEL, TAPS
from parity.gates import positions_passes, positions_rotation, rope
from parity.gates.positions import STYLES, not_refused, restyled, unknown
from parity.gates.positions_passes import OneTokenTap, cached_keys, first_wrong, misturned, plain_token, seen_position
from parity.gates.positions_rotation import ALONE, ROWS, RotationResult, judge_rotation, measured_theta
from parity.gates.positions_schedules import departure
from parity.gates.rope import RopeSchedule

KEYS, OTHER, FUSED = "kv.target.0.k", "kv.drafter.0.k", "drafter.fc_out"
CHOICES = ("target.tokens", "verify.tokens", "drafter.draft_tokens", "accept.emitted")
TURNS = RopeSchedule("default", 10_000.0, 4, {})
YARN = RopeSchedule(
    "yarn", 10_000.0, 16,
    {"factor": 8.0, "original_max_position_embeddings": 64.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
)  # fmt: skip


def keys(positions) -> np.ndarray:
    """Two heads of ones, turned by these positions."""
    ones = np.ones((len(positions), 2, 4))
    return rope.dimensions(rope.rotate(TURNS, ones, np.asarray(positions))).astype(np.float32)


def test_every_choice_is_the_one_token_and_every_fused_row_the_first():
    tap = OneTokenTap(7, {*CHOICES, FUSED})
    assert all(tap(stage, np.array([1, 2])).tolist() == [7, 7] for stage in CHOICES) and tap.waits == {FUSED}
    assert tap(FUSED, np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1, 2]] * 2 and not tap.waits
    assert tap.rows(FUSED, np.array([[5.0, 6.0]]), 3, 9).tolist() == [[1, 2]]
    assert tap("target.layers.0.q", np.array([1.0])).tolist() == [1.0]


def test_the_keys_of_a_cache_are_its_own_or_what_is_written_where_it_keeps_another_format():
    shown = np.full((3, 1, 2), 9.0)
    plain, quantised = OneTokenTap(7, set()), OneTokenTap(7, set(), quantised=True)
    for tap in (plain, quantised):
        tap("target.layers.0.k", np.full((2, 1, 2), 1.0))
        tap(KEYS, shown[:2])
    assert plain.keys["target"].tolist() == shown[:2].tolist() and quantised.keys["target"].tolist() == [[[1, 1]]] * 2
    quantised(KEYS, shown)  # of a third row nothing was written
    assert quantised.keys["target"].tolist() == shown.tolist() and quantised.keys["target"].dtype == np.float32
    quantised("target.layers.0.k", np.full((1, 1, 2), 2.0))
    quantised(KEYS, shown)
    assert quantised.keys["target"][:, 0, 0].tolist() == [1, 1, 2]


def test_a_drafters_keys_are_written_by_its_positions_and_once_more_over_those_before():
    tap = OneTokenTap(7, set(), quantised=True)
    for positions, number in (([0, 1, 2], 1.0), ([1, 2], 2.0)):
        tap("drafter.positions", np.array(positions))
        tap("drafter.layers.0.k", np.full((len(positions), 1, 2), number))
    tap(OTHER, np.zeros((3, 1, 2)))
    assert tap.keys["drafter"][:, 0, 0].tolist() == [1, 2, 2] and "target" not in tap.keys


def device(most: int, family: str = "parallel", kv_cache: str = "", hides: tuple[str, ...] = ()):
    """A device that hands over what the gate waits for, but for what it hides; `calls` are its verbs."""
    calls: list[tuple] = []

    def said(tap, *stages):
        for stage in stages:
            if stage not in hides:
                tap(stage, np.zeros((2, 1, 2)))

    def prefill(ids, budget, tap):
        calls.append((list(ids), budget))
        said(tap, "target.tokens", FUSED, KEYS, OTHER)

    def draft(tap):
        calls.append(("draft",))
        said(tap, "drafter.draft_tokens")
        return [1]

    def verify(drafts, tap):
        said(tap, "verify.tokens")
        return [2]

    def commit(drafts, tokens, tap):
        said(tap, "accept.emitted")

    says = SimpleNamespace(max_positions=most, family=family, kv_cache=kv_cache)
    verbs = dict(prefill=prefill, draft=draft, verify=verify, commit=commit)
    return SimpleNamespace(describe=lambda: says, calls=calls, **verbs)


def family_with(monkeypatch, *has: str) -> None:
    monkeypatch.setattr(positions_passes, "family_of", lambda name: SimpleNamespace(has=has))


def test_the_prompt_is_as_long_as_six_rounds_of_a_device_leave(monkeypatch):
    """With K = 2 a token and six rounds of three are the budget, and K rows more are kept free."""
    family_with(monkeypatch, MODEL, TAPS)
    for most, prompt in ((1000, 512 - 19 - 2), (40, 19), (23, 2)):
        made = device(most)
        assert cached_keys(made, 5, 2)[1] == prompt
        assert made.calls[0] == ([5] * prompt, 19) and len(made.calls) == 1 + 6
    with pytest.raises(NotOffered, match="22 positions are too few for 6 rounds of 2 drafts"):
        cached_keys(device(22), 5, 2)


@pytest.mark.parametrize(
    ("hides", "has", "said"),
    [
        ((OTHER,), True, "records no kv.drafter.0.k, by"),
        ((OTHER,), False, ""),
        ((KEYS,), False, "records no kv.target.0.k, by"),
        ((FUSED,), True, "its tap is not given drafter.fc_out "),
        ((FUSED,), False, ""),
        (("accept.emitted",), True, "its tap is not given accept.emitted "),
    ],
)
def test_what_a_device_does_not_hand_over_is_told(hides, has, said, monkeypatch):
    family_with(monkeypatch, *((MODEL, TAPS) if has else ()))
    if said:
        with pytest.raises(NotOffered, match=said):
            cached_keys(device(64, hides=hides), 5, 2)
    else:
        assert "target" in cached_keys(device(64, hides=hides), 5, 2)[0]


def test_rows_turned_by_their_positions_are_one_and_others_are_told():
    right = keys(range(12))
    assert misturned(TURNS, right) == pytest.approx(np.zeros(12), abs=1e-6)
    assert first_wrong(TURNS, "target", right, 4) == ""
    for row, where in ((3, "prefill"), (4, "the rounds behind the prompt")):
        wrong = right.copy()
        wrong[[row, 7]] = keys([1, 2])
        said = f"target: 2 of 12 rows misturned, first row {row} (in {where}), as if at position 1"
        assert first_wrong(TURNS, "target", wrong, 4) == said


def test_a_row_is_as_far_off_as_its_worst_head_relative_to_that_heads_longest_pair():
    wrong = keys(range(5))
    wrong[:, 1] *= 8
    wrong[2, 0, 0] += 0.5
    wrong[4, 1, 3] = np.nan
    apart = misturned(TURNS, wrong[:4])
    longest = np.abs(rope.pairs(wrong[2, 0])).max()
    assert apart[2] == pytest.approx(0.5 / longest) and apart[[0, 1, 3]] == pytest.approx(np.zeros(3), abs=1e-6)
    assert not np.isfinite(misturned(TURNS, wrong)[4])


def test_a_head_counts_whose_pairs_are_more_or_fewer_than_the_heads():
    for heads in (1, 3):
        wrong = np.repeat(keys(range(4))[:, :1], heads, axis=1)
        wrong[2, heads - 1, 1] += 0.5
        longest = np.abs(rope.pairs(wrong[:, heads - 1])).max()
        assert misturned(TURNS, wrong)[2] == pytest.approx(0.5 / longest, rel=1e-3)
        assert misturned(TURNS, wrong)[[0, 1, 3]] == pytest.approx(np.zeros(3), abs=1e-6)


def test_where_no_row_is_right_all_others_say_where_a_row_seems_to_be():
    rows = keys([2, 3, 4, 3, 3])
    none = np.zeros(5, bool)
    assert seen_position(TURNS, keys(range(5)), none, 3) == 3
    assert seen_position(TURNS, rows, np.array([0, 0, 0, 1, 0], bool), 1) == 3


def test_a_plain_token_ends_nothing():
    assert plain_token([4, 5, 6], [4]) == 5 and plain_token([4, 5], []) == 4


CONFIG = {"head_dim": 4, "max_position_embeddings": 32, "rope_theta": 1e4, "rope_scaling": None}


def test_positions_that_are_none_are_tried_and_a_good_one_in_both_spellings(tmp_path):
    """The last position there is is taken; the one behind it, twice as many and -1 are not."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    asked = []

    def rotate(folder, side, x, positions):
        asked.append((side, x.shape, positions.tolist()))
        if json.loads((folder / "config.json").read_text()).keys() & {*STYLES} and positions[1] == 31:
            return
        raise ValueError("no")

    wrong, tried = not_refused(rotate, tmp_path, "target")
    each = [*unknown(CONFIG, "rope_scaling")]
    assert not wrong and tried == 2 * len(each) + 2 + 3 == len(asked)
    assert {one[:2] for one in asked} == {("target", (2, 1, 4))}
    assert [at[1] for _, _, at in asked][-5:] == [31, 31, 32, 64, -1] and all(at[0] == 0 for _, _, at in asked)
    taken, _ = not_refused(lambda *given: None, tmp_path, "target")
    assert len(taken) == tried - 2 and taken[-3:] == [f"target: position {at}" for at in (32, 64, -1)]
    refused, _ = not_refused(lambda *given: [][0], tmp_path, "target")
    assert refused == [f"target, {style}: a good config" for style in STYLES]


def test_an_end_of_a_device_is_no_refusal(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def ends(*given):
        raise NotOffered("no rotation")

    with pytest.raises(NotOffered):
        not_refused(ends, tmp_path, "target")


def test_a_schedule_is_restyled_in_whichever_spelling_it_stands():
    rope_of = {"rope_type": "yarn", "factor": 2.0}
    inner = {"rope_parameters": {**rope_of, "rope_theta": 5.0}, "x": 1}
    outer = {"rope_scaling": rope_of, "rope_theta": 5.0, "x": 1}
    for config in (inner, outer):
        assert restyled(config, "rope_parameters") == inner and restyled(config, "rope_scaling") == outer
    bare = {"rope_theta": 5.0}
    assert restyled(bare, "rope_scaling") == {"rope_scaling": {"rope_type": "default"}, "rope_theta": 5.0}


def test_what_float32_explains_grows_with_the_position_and_where_two_frequencies_are_blended():
    """By hand: (sqrt(5) + 4) U, 7 U of the angle, and 10 U of the distance of the two that are blended."""
    unit = 2.0**-24
    assert (unit, 7, 10) == (rope.U, rope.FREQUENCY, rope.BLEND)
    at = rope.bound(TURNS, np.array([0, 100]))
    assert at[0] == pytest.approx(np.full(2, (5**0.5 + 4) * unit), rel=1e-12)
    assert at[1] - at[0] == pytest.approx(100 * unit * 7 * TURNS.frequencies(), rel=1e-9)
    plain, slow, share = YARN.blend()
    blended = (share > 0) & (share < 1)
    slope = (rope.bound(YARN, np.array([1]))[0] - (5**0.5 + 4) * unit) / unit
    assert blended.any() and not blended.all()
    assert slope - 7 * YARN.frequencies() == pytest.approx(np.where(blended, 10 * (plain - slow), 0), abs=1e-6)


def test_scaled_pairs_turn_further_than_unscaled_ones_from_a_position_on():
    plain, _, _ = YARN.blend()
    slow = 64 * plain < 2 * np.pi
    assert YARN.unscaled_until(64) == pytest.approx(64 * (plain / YARN.frequencies())[slow].min())
    assert TURNS.unscaled_until(1e9) == np.inf  # every pair goes round
    assert TURNS.unscaled_until(64) == 64


def test_rows_are_asked_together_and_the_last_three_alone(monkeypatch):
    assert (ALONE, ROWS) == (3, 32768)
    monkeypatch.setattr(positions_rotation, "ROWS", 4)
    chunks = [(one.start, one.stop) for one in positions_rotation._chunks(10)]
    assert chunks == [(0, 4), (4, 7), (7, 8), (8, 9), (9, 10)]
    assert [(one.start, one.stop) for one in positions_rotation._chunks(2)] == [(0, 1), (1, 2)]
    assert [(one.start, one.stop) for one in positions_rotation._chunks(7)][:2] == [(0, 4), (4, 5)]


def test_the_base_that_was_turned_by_is_measured_where_position_1_was_asked():
    positions = np.array([7, 1, 30])
    x = rope.unit_heads(np.random.default_rng(0), 3, 1, 8)
    for theta in (500.0, 1e6):
        turned = rope.dimensions(rope.rotate(RopeSchedule("default", theta, 8, {}), x, positions))
        assert measured_theta(x, positions, turned) == pytest.approx(theta, rel=1e-3)
        assert measured_theta(x, positions + 1, turned) is None
    assert measured_theta(x, positions, x) is None  # nothing was turned


def test_a_rotation_says_its_worst_error_and_each_half(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 9}))

    def rotate(folder, side, x, positions):
        got = rope.rotate_float32(TURNS, x, positions)
        got[positions == 8, 0, 0] += 0.25
        got[positions == 2, 0, 1] += 0.125
        return got

    found = judge_rotation(rotate, tmp_path, "target", "toy", 0)
    assert found.positions == 9 and found.place == "position 8, pair 0"
    assert found.worst == pytest.approx(0.25, rel=1e-3) and found.halves == pytest.approx((0.125, 0.25), rel=1e-3)
    assert "outside float32 at 2 of 9 positions, from 2 on; " in found.wrong and found.share > 1 > found.floor
    clean = judge_rotation(lambda f, s, x, p: rope.rotate_float32(TURNS, x, p), tmp_path, "target", "toy", 0, some=4)
    assert clean.positions == 4 and clean.share < 1 and not clean.wrong and clean.worst == clean.floor


def test_a_rotation_is_one_line_of_evidence():
    told = RotationResult("toy", 12_000, 2e-3, "position 7, pair 1", 0.5, 1e-3, (1e-3, 2e-3))
    said = "worst error 2.0e-03 at position 7, pair 1, 2x the float32 floor (first half 1.0e-03, second half 2.0e-03)"
    assert str(told) == f"toy: 12,000 positions, {said}"
    wrong = RotationResult("toy", 12, 2e-3, "position 7, pair 1", 0.5, 1e-3, (1e-3, 2e-3), "it is late")
    assert str(wrong) == f"toy: it is late, {said}"


def test_two_schedules_part_at_the_first_distance_beyond_noise_of_heads_of_one_size():
    other = RopeSchedule("default", 5_000.0, 4, {})
    apart = [np.abs(rope.turn(one.frequencies(), np.arange(64)) * [0, 1]) for one in (TURNS, other)]
    assert departure(TURNS, TURNS, 64) == {"apart_from": None, "matters_from": None} and len(apart) == 2
    by = abs(TURNS.frequencies()[1] - other.frequencies()[1])
    first = int(np.ceil(2 * np.arcsin(2.0**-7) / by))
    assert departure(TURNS, other, 64)["apart_from"] == first
    assert departure(TURNS, other, first)["apart_from"] is None
    assert departure(TURNS, RopeSchedule("default", 5_000.0, 8, {}), 64)["apart_from"] is None
    assert departure(YARN, RopeSchedule("default", 10_000.0, 16, {}), 65)["matters_from"] == 64
    assert departure(YARN, RopeSchedule("default", 10_000.0, 16, {}), 64)["matters_from"] is None
    assert departure(YARN, YARN, 4096)["matters_from"] is None
