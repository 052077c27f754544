"""What wrong rows hold, by hand: how a step is said, which of two is simpler, what rows share by turns or by part."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import origins
from parity.compare.origins import HeldInstead, Step, _many, _Search
from parity.stages import declared

NAMES = declared(2, 1)
STAGES = ("drafter.fc_out", "target.layers.0.q")


def search(count: int, width: int = 8, parts: int = 1, stage: str = "target.layers.0.ffn_out", prompts: int = 2):
    """Wrong rows of one prompt and round at positions 10, 11, …, all of them looked at."""
    made = _Search.__new__(_Search)
    made.looked = made.wrong = np.arange(count)
    made.width, made.parts = width, parts
    made.what = "row" if parts == 1 else "head"
    made.rows = SimpleNamespace(named=NAMES[stage])
    made.golden = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(prompts=[None] * prompts)))
    part = np.arange(count) % parts if parts > 1 else np.full(count, -1)
    place = np.arange(count) // parts
    zero = np.zeros(count, np.int64)
    labels = np.stack([zero, zero, zero + 1, 10 + place, place, part], axis=1)
    made.own = SimpleNamespace(labels=labels, values=np.arange(count * width).reshape(count, width))
    made.shown = SimpleNamespace(labels=labels, values=made.own.values)
    return made


def at(*position: int, stage: int = 0, prompt: int = 0, round_: int = 1, part: int = -1) -> list[np.ndarray]:
    """For each wrong row the label of the one that it holds, by position; none where that is negative."""
    labels = [[stage, prompt, round_, place, place - 10, part] for place in position]
    return [np.array([label] if label[3] >= 0 else [], np.int64).reshape(-1, 6) for label in labels]


def test_what_is_shared_by_all_or_most_is_told_by_how_many():
    assert (HeldInstead("x", 1.0).by_all, HeldInstead("x", 0.95).by_all, HeldInstead("x", 0.9).by_most) == (
        True,
        False,
        True,
    )
    assert not HeldInstead("x", 0.89).by_most and str(HeldInstead("rows", 0.5)) == "rows"


def test_a_step_is_simpler_that_stays_in_the_stage_has_few_differences_and_is_near():
    steps = [
        Step(0, 0, 0, -1, 0), Step(0, 0, 0, 2, 0), Step(0, 0, 0, 2, 0, by_index=True), Step(0, 1, 0, 1, 0),
        Step(0, 1, 1, 1, 0), Step(1, 0, 0, 0, 0), Step(2, 0, 0, 1, 0), Step(0, 0, 0, 0, 0, fixed=True),
    ]  # fmt: skip
    order = sorted(steps, key=lambda step: step.simple, reverse=True)
    assert order == steps


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Step(0, 0, 0, -1, 0), "what belongs 1 position before"),
        (Step(0, 2, 0, 3, 0), "what belongs 3 positions behind and 2 prompts behind"),
        (Step(0, 0, -1, 1, 2), "what belongs 2 rows behind and 1 position behind and 1 round before"),
        (Step(0, 0, 0, 2, 0, by_index=True), "what belongs 2 places in its pass behind"),
        (Step(0, 0, 0, 1, 0, by_index=True), "what belongs 1 place in its pass behind"),
        (Step(1, 0, 0, 0, 0), "the same row of target.layers.0.q"),
        (Step(1, 0, 0, 1, 0), "target.layers.0.q, 1 position behind"),
        (Step(0, 3, 2, 7, -1, fixed=True), "what belongs at position 7 of round 2, prompt 3"),
        (Step(1, 3, 2, 7, 0, fixed=True), "target.layers.0.q at position 7 of round 2, prompt 3, row 0"),
    ],
)
def test_a_step_is_said_from_its_nearest_difference_on(step, said):
    assert search(4)._says(step, STAGES) == said


def test_a_prompt_that_is_alone_has_no_number():
    assert search(4, prompts=1)._place(0, 2, 7, -1) == "position 7 of round 2"


def test_the_plural_is_the_first_words():
    assert (_many(1, "row"), _many(-2, "row"), _many(-1, "place in its pass")) == (
        "1 row",
        "2 rows",
        "1 place in its pass",
    )
    assert _many(3, "place in its pass") == "3 places in its pass"


def test_how_many_hold_it_is_said_of_those_that_were_looked_at():
    some = search(10)
    assert (some._counted(10), some._counted(9)) == ("all 10 wrong rows hold", "9 of 10 wrong rows hold")
    some.wrong = np.arange(40)
    assert some._counted(9) == "9 of 10 wrong rows looked at (40 in all) hold"
    assert search(1)._counted(1) == "the wrong row holds"
    assert search(10)._told_of(5, "zeros").share == 0.5


@pytest.mark.parametrize(
    ("before", "share", "said"),
    [
        (10, 1.0, "all 10 wrong rows hold what belongs 1 position before"),
        (9, 0.9, "9 of 10 wrong rows hold what belongs 1 position before"),
        (5, 0.5, "5 of 10 wrong rows hold what belongs 1 position before"),
    ],
)
def test_a_step_that_half_of_them_share_is_told(before, share, said):
    some = search(10)
    held = some._shared(STAGES, at(*range(9, 9 + before), *[-1] * (10 - before)), "")
    assert (str(held), held.share) == (said, share)


def test_of_fewer_an_example_is_told_where_half_of_them_hold_something():
    """Far apart, so that no two share a step."""
    some, far = search(10), [40, 50, 61, 73, 86]
    held = some._shared(STAGES, at(-1, *far, *[-1] * 4), ", yes")
    says = "5 of 10 wrong rows hold others' values, the one at position 11 of round 1, prompt 0 what belongs at"
    assert str(held) == f"{says} position 40 of round 1, prompt 0, yes" and held.share == 0.5
    assert some._shared(STAGES, at(-1, *far[1:], *[-1] * 5), "") is None
    assert some._shared(STAGES, at(*[-1] * 10), "") is None


def test_ids_need_nine_in_ten_of_one_step_and_four_values():
    """Numbers of one column: one is another's by chance."""
    ids = search(10, width=1)
    assert ids._shared(STAGES, at(*range(9, 18), -1), "").share == 0.9
    assert ids._shared(STAGES, at(*range(9, 17), -1, -1), "") is None
    ids.shown.values = np.arange(10).reshape(10, 1) % 4
    assert ids._shared(STAGES, at(*range(9, 19)), "") is not None
    ids.shown.values = np.arange(10).reshape(10, 1) % 3
    assert ids._shared(STAGES, at(*range(9, 19)), "") is None
    assert search(10, width=4)._shared(STAGES, at(*range(9, 17), -1, -1), "") is not None
    assert search(10, width=1)._shared(STAGES, at(*[30] * 10), "") is None  # one and the same place


def test_rows_that_are_exchanged_hold_each_others_by_turns():
    pairs = [place + (1 if place % 2 == 0 else -1) for place in range(10, 20)]
    held = search(10)._shared(STAGES, at(*pairs), "")
    assert (
        str(held)
        == "all 10 wrong rows hold by turns what belongs 1 position behind (5), what belongs 1 position before (5)"
    )
    assert held.by_all
    nine = search(10)._by_turns(STAGES, at(*pairs[:9], -1), "")
    assert nine.share == 0.9 and search(10)._by_turns(STAGES, at(*pairs[:8], -1, -1), "") is None
    assert search(10, width=3)._by_turns(STAGES, at(*pairs), "") is None
    assert search(10)._by_turns(STAGES, at(*range(9, 19)), "") is None  # one step is no turn
    few = [*range(9, 16), *(place + 2 for place in range(17, 20))]
    assert search(10)._by_turns(STAGES, at(*few), "") is None  # three of one step are fewer than four


def test_three_steps_are_told_by_turns_and_not_four():
    def by(*steps: int) -> list[np.ndarray]:
        return at(*(10 + place + step for place, step in enumerate(np.repeat(steps, 4))))

    told = search(12)._by_turns(STAGES, by(-1, 2, 5), "")
    assert told.by_all and str(told).count("(4)") == 3
    assert search(16)._by_turns(STAGES, by(-1, 2, 5, 9), "") is None


def test_heads_are_told_each_by_what_most_of_its_rows_hold():
    """Two heads of eight rows: the first one's hold the row before, the second one's the first head's."""
    some = search(16, parts=2)

    def held(first: int, second: int) -> list[np.ndarray]:
        labels = [
            [0, 0, 1, 9 + row, row - 1, 0] if part == 0 else [0, 0, 1, 10 + row, row, 0]
            for row in range(8) for part in range(2)
        ]  # fmt: skip
        there = [row < (first, second)[part] for row in range(8) for part in range(2)]
        return [np.array([one] if is_ else [], np.int64).reshape(-1, 6) for one, is_ in zip(labels, there, strict=True)]

    says = "others' values: head 0 what belongs 1 position before; head 1 what belongs 1 head before"
    whole = some._by_part(STAGES, held(8, 8), "")
    assert str(whole) == f"all 16 wrong heads hold {says}"
    assert str(some._by_part(STAGES, held(4, 8), ", yes")) == f"12 of 16 wrong heads hold {says}, yes"
    assert some._by_part(STAGES, held(3, 8), "") is None and some._by_part(STAGES, held(8, 0), "") is None


def test_a_cache_has_no_rows_by_their_place_in_a_pass():
    label = [0, 0, 0, 8, 3, -1]
    own = [*search(4)._steps(0, label)]
    assert own == [
        Step(0, 0, -1, -2, 0), Step(0, 0, -1, 3, 0, by_index=True),
        Step(0, 0, 0, 3, 0, by_index=True, first=True), Step(0, 0, 0, -2, 0), Step(0, 0, 0, 8, -1, fixed=True),
    ]  # fmt: skip
    assert [*search(4, stage="kv.target.0.k")._steps(0, label)] == [own[0], own[4]]
    assert len([*search(4)._steps(0, [0, 0, 1, 8, 3, -1])]) == 3  # of the same round
    assert len([*search(4)._steps(0, [0, 0, 0, 10, 3, -1])]) == 4  # of the same position


def blocks(held: list[int], zeros: tuple[int, ...] = (), **made) -> HeldInstead | None:
    """Cached rows that hold these positions, none where negative, and zeros at these places."""
    cached = search(len(held), stage="kv.target.0.k", **made)
    cached.rows = SimpleNamespace(named=cached.rows.named, floor=cached.own.values)
    cached.shown.values[list(zeros)] = 0
    return cached._in_blocks(STAGES, at(*held))


def test_rows_written_elsewhere_are_told_block_by_block_with_what_stands_where_none_was():
    pages = blocks(
        [-1] * 4 + [10, 11, 12, 13] + [-1] * 4 + [14, 15, 16, 17] + [-1] * 4, (0, 1, 2, 3, 8, 9, 10, 11, *range(16, 20))
    )
    assert pages is not None and pages.by_all
    assert str(pages) == (
        "all 20 wrong rows hold others' values or zeros, in blocks: positions 10 to 13 of round 1 zeros, positions "
        "14 to 17 of round 1 what belongs 4 positions before, positions 18 to 21 of round 1 zeros, positions 22 to 25 "
        "of round 1 what belongs 8 positions before and so on (5 blocks)"
    )
    one = blocks([11, 12, 13, 14, -1, -1], (4, 5))
    assert (
        one is not None and "position 14 " not in str(one) and str(one).endswith("positions 14 to 15 of round 1 zeros")
    )


@pytest.mark.parametrize(
    ("held", "zeros", "width"),
    [
        ([12, 17, 13, 19, 11, 10], (), 8),  # no two neighbours in common
        ([11, 12, 13, 14, -1, -1, 18, 19], (), 8),  # a fourth holds nothing known
        ([11, 12, 13, 14, -1, -1], (4, 5), 3),  # too few numbers to be another row's
    ],
)
def test_blocks_need_neighbours_that_moved_together_and_nearly_every_row(held, zeros, width):
    assert blocks(held, zeros, width=width) is None


def test_rows_are_earlier_by_round_or_prompt_where_the_golden_has_another():
    some = search(3)
    some.own.labels = some.own.labels.copy()
    some.own.labels[:, 2] = [1, 2, 2]
    some.own.values = np.array([[1, 2], [1, 3], [1, 2]])
    assert some._earlier(0, 1) and not some._earlier(1, 0) and not some._earlier(1, 2)
    assert not some._earlier(0, 2)  # the golden's are alike


def test_what_is_looked_for_are_256_rows_and_what_a_row_may_hold_64():
    assert (origins.MOST, origins.MATCHES, origins.WIDTH, origins.STEPS) == (256, 64, 4, 3)
    assert (origins.SHARED, origins.LEAST) == (0.9, 0.1)


@pytest.mark.parametrize(
    ("stage", "parts", "what"),
    [
        ("drafter.taps", 1, "row"),
        ("drafter.taps", 3, "tap"),
        ("target.layers.0.q", 2, "head"),
        ("kv.target.0.k", 1, "row"),
    ],
)
def test_what_is_wrong_are_rows_heads_or_taps(monkeypatch, stage, parts, what):
    units = SimpleNamespace(values=np.zeros((9, 4)), wrong=lambda shown, precision: np.arange(9) > 6)
    monkeypatch.setattr(origins, "Units", SimpleNamespace(of=lambda rows, side: units))
    run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(mode="local", precision="bfloat16")))
    made = _Search(None, run, SimpleNamespace(named=NAMES[stage]), parts)
    assert (made.what, made.mode, made.width, made.looked.tolist()) == (what, "local", 4, [7, 8])


def test_of_many_wrong_rows_some_are_looked_at_in_their_order(monkeypatch):
    run = SimpleNamespace(manifest=SimpleNamespace(case=SimpleNamespace(mode="local", precision="bfloat16")))
    units = SimpleNamespace(values=np.zeros((300, 4)))
    monkeypatch.setattr(origins, "Units", SimpleNamespace(of=lambda rows, side: units))
    for count in (256, 257):
        units.wrong = lambda shown, precision, count=count: np.arange(300) < count
        made = _Search(None, run, SimpleNamespace(named=NAMES["target.layers.0.out"]), 1)
        assert len(made.wrong) == count and len(made.looked) == 256 and (np.diff(made.looked) > 0).all()


def test_nothing_is_looked_for_among_too_many_values_or_ones_that_are_no_numbers(monkeypatch):
    asked = []
    monkeypatch.setattr(origins, "parts_of", lambda golden, rows: 1)
    monkeypatch.setattr(origins, "_Search", lambda *of: asked.append(of) or SimpleNamespace(told=lambda: "held"))

    def told(golden, device=None, held: bool = True):
        rows = SimpleNamespace(golden=golden, device=golden if device is None else device)
        monkeypatch.setattr(origins, "stage_rows", lambda *of: rows if held else None)
        return origins.held_instead(None, None, None)

    small, bad = np.zeros((2, 4)), np.array([[0, np.nan], [0, 0]])
    assert told(small) == "held" and len(asked) == 1
    assert told(small, bad) is told(small, held=False) is None
    monkeypatch.setattr(origins, "VALUES", 8)
    assert told(small) == "held" and told(np.zeros((3, 3))) is told(np.zeros((3, 3)), bad) is None
