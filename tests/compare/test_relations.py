"""Which rows are bad, by the simplest condition that separates them from the clean ones; nothing where none does."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from parity import limits
from parity.compare.facts import Facts, _config, _numbers
from parity.compare.quantities import QUANTITIES, bounds_of
from parity.compare.relations import relation, separating
from parity.compare.rows import stage_rows

PROMPTS = (100, 70)
CONFIG = {"sliding_window": 32, "original_max_position_embeddings": 64}


def facts(side: str = "target", rounds: int = 6, rows: int = 5) -> Facts:
    """Two prompts, a prefill each, and rounds of five rows behind it."""
    labels = []
    for prompt, length in enumerate(PROMPTS):
        labels += [(prompt, 0, at, at, length, length, -1) for at in range(length)]
        known = 2 if side == "drafter" else -1
        for round_ in range(1, rounds + 1):
            labels += [(prompt, round_, length + 3 * round_ + at, at, rows, length, known) for at in range(rows)]
    prompt, round_, position, index, count, prompts, committed = np.array(labels).T
    experts = {2: position % 7 == 3, 5: position % 3 == 1}
    return Facts(prompt, round_, position, index, count, prompts, committed, side, experts, CONFIG)


SEEN = facts()
DRAFTER = facts("drafter")
LONG = facts(rounds=24)
START, END = SEEN.position - SEEN.index, SEEN.position - SEEN.index + SEEN.count - 1
TOKENS = replace(SEEN, token=np.random.default_rng(0).choice([3, 40, 700, 1263, 1264, 1265], len(SEEN.position)))

_DRAWN = np.random.default_rng(1)
DUE = replace(
    SEEN,
    due=_DRAWN.integers(0, 1000, len(SEEN.position)),
    largest=_DRAWN.exponential(20, len(SEEN.position)),
    left=_DRAWN.integers(1, 12, len(SEEN.position)),
)
"""Facts that nothing else tells."""


CHOSEN = replace(DUE, repeats=np.where(SEEN.index > 0, _DRAWN.integers(0, 2, len(SEEN.position)), -1))
PAIRED = replace(TOKENS, own=np.roll(TOKENS.token, 1))

REWRITTEN = replace(
    LONG, again=np.where(LONG.round > 0, np.random.default_rng(4).integers(0, 2, len(LONG.position)), -1)
)

SIZED = replace(
    LONG,
    alike=np.where(LONG.round > 0, np.random.default_rng(5).integers(0, 2, 100)[3 * LONG.round + LONG.prompt], -1),
)


@pytest.mark.parametrize(
    ("bad", "says", "seen"),
    [
        (SEEN.position >= 0, "every row", SEEN),
        (SEEN.position >= 32, "from 32 = sliding_window on", SEEN),
        (SEEN.position >= 33, "from 33 = sliding_window + 1 on", SEEN),
        (SEEN.position < 64, "before 64 = original_max_position_embeddings", SEEN),
        (SEEN.position >= SEEN.prompts - 1, "from the prompt's end - 1 on", SEEN),
        (SEEN.round > 0, "verify rows only", SEEN),
        (SEEN.round == 0, "prefill rows only", SEEN),
        (SEEN.index == 0, "row 0 of every pass", SEEN),
        (SEEN.position % 16 == 15, "every 16th position, from 15 on", SEEN),
        (SEEN.experts[2], "expert 2's rows", SEEN),
        (SEEN.prompt == 1, "prompt 1 only", SEEN),
        (SEEN.round >= 4, "from round 4 on", SEEN),
        (SEEN.round % 2 == 1, "odd rounds only", SEEN),
        ((SEEN.round > 0) & (SEEN.round % 2 == 0), "even rounds behind the prefill only", SEEN),
        ((LONG.round > 0) & (LONG.round % 4 == 0), "every 4th round, from 4 on", LONG),
        (LONG.round % 3 == 1, "every 3rd round, from 1 on", LONG),
        (
            (LONG.round == 0) & (LONG.prompts - LONG.position > 21),
            "rows of the prefill with 21 or more behind them",
            LONG,
        ),
        (SEEN.position >= 41, "from position 41 on", SEEN),
        (
            (SEEN.position >= 64) & (SEEN.round == 0),
            "from 64 = original_max_position_embeddings on, in prefill rows",
            SEEN,
        ),
        (TOKENS.token >= 1264, "token ids from 1264 on", TOKENS),
        (TOKENS.token <= 40, "token ids up to 40", TOKENS),
        (TOKENS.token == 1265, "token 1265 only", TOKENS),
        ((TOKENS.token >= 1264) & (TOKENS.round == 0), "token ids from 1264 on, in prefill rows", TOKENS),
        (
            SEEN.experts[5] & (SEEN.position >= 64),
            "from 64 = original_max_position_embeddings on, of these expert 5's rows",
            SEEN,
        ),
        ((SEEN.round > 0) & (SEEN.index == 3), "row 3 of every later pass", SEEN),
        ((SEEN.round > 0) & (SEEN.index >= 2), "rows of later passes from row 2 on", SEEN),
        ((SEEN.index == SEEN.count - 1) & (SEEN.round > 0), "the last row of every later pass", SEEN),
        (SEEN.position % 16 < 4, "the first 4 positions of each 16", SEEN),
        ((SEEN.index % 3 == 0) & (SEEN.round == 0), "every 3rd row of a pass, from 0 on, in prefill rows", SEEN),
        (SEEN.index % 4 > 0, "every row of a pass but each 4th", SEEN),
        (TOKENS.token % 2 == 1, "odd token ids", TOKENS),
        (
            (LONG.round > 0) & (LONG.known("end") % 8 == 7),
            "later passes that end at the last position of a tile of 8",
            LONG,
        ),
        ((SEEN.round > 0) & (START // 16 < END // 16), "later passes over the end of a tile of 16", SEEN),
        (
            (SEEN.round > 0) & (SEEN.position // 16 > START // 16),
            "rows behind the end of a tile of 16 in later passes",
            SEEN,
        ),
        (
            (SEEN.round > 0) & (SEEN.position >= (END + 1) // 4 * 4),
            "rows of later passes behind the sequence's last whole tile of 4",
            SEEN,
        ),
        (
            (SEEN.position >= SEEN.prompts // 32 * 32) & (SEEN.round == 0),
            "behind the prompt's last whole tile of 32, in prefill rows",
            SEEN,
        ),
        ((LONG.round > 0) & ((LONG.position - LONG.index) % 8 > 0), "later passes that begin inside a tile of 8", LONG),
        (
            (REWRITTEN.again == 1) & (REWRITTEN.index > 0),
            "every row of a pass but its first, of these rows at positions that an earlier pass had",
            REWRITTEN,
        ),
        (REWRITTEN.again == 0, "rows of later passes at positions that none had before", REWRITTEN),
        ((TOKENS.token >= 700) & (TOKENS.token < 1265), "token ids 700 to 1264", TOKENS),
        (DUE.due >= 500, "ids from 501 on are due", DUE),
        (DUE.largest >= 60, "rows with an element of 66.9 or more", DUE),
        (DUE.left <= 2, "rounds with 2 tokens left or fewer", DUE),
        (SIZED.alike == 1, "later passes of as many rows as the one before", SIZED),
        (SIZED.alike == 0, "later passes of other sizes than the one before", SIZED),
        (CHOSEN.repeats == 1, "rows whose id is that of the row before", CHOSEN),
        (CHOSEN.repeats == 0, "rows whose id is another than the row before's", CHOSEN),
        (PAIRED.own >= 1264, "rows of token ids from 1264 on", PAIRED),
        ((DRAFTER.index >= 2) & (DRAFTER.round > 0), "masked rows only", DRAFTER),
        ((DRAFTER.index == 1) & (DRAFTER.round > 0), "the NTP row only", DRAFTER),
    ],
)
def test_the_simplest_condition_is_told(bad, says, seen):
    assert relation(bad, np.ones_like(bad), seen) == says


def test_a_window_that_is_too_wide_breaks_some_rows_behind_it_and_none_before():
    bad = (SEEN.position == 32) | ((SEEN.position > 32) & (np.random.default_rng(1).random(len(SEEN.position)) < 0.3))
    told = relation(bad, np.ones_like(bad), SEEN)
    assert told.startswith(f"none before 32 = sliding_window, {bad.sum()} of {(SEEN.position >= 32).sum()} rows")


def test_a_condition_of_which_some_rows_are_off_by_less_than_noise_is_told_with_its_share():
    some = np.random.default_rng(3).random(len(SEEN.position)) < 0.7
    for inside, says in ((SEEN.experts[2], "expert 2's rows"), (TOKENS.token >= 1264, "token ids from 1264 on")):
        bad = inside & some
        told = relation(bad, np.ones_like(bad), TOKENS)
        assert told == f"{says}: {bad.sum()} of {inside.sum()} rows, and no other"


@pytest.mark.parametrize("share", [0.3, 0.05])
def test_what_most_rows_of_a_condition_do_not_show_is_said_as_what_the_others_are_among(share):
    bad = (LONG.round > 0) & (LONG.index < LONG.count - 1) & (np.random.default_rng(5).random(len(LONG.round)) < share)
    inside = int(((LONG.round > 0) & (LONG.index < LONG.count - 1)).sum())
    told = relation(bad, np.ones_like(bad), LONG)
    says = f"among every row of a later pass but its last: {bad.sum()} of {inside} rows, and no other"
    assert told == (says if share > 0.1 else "")


def test_what_nothing_tells_apart_is_told_beside_it():
    """Where one round alone follows one that accepted nothing, either may be the condition."""
    one = replace(SEEN, accepted=np.where(SEEN.round == 3, 0, np.where(SEEN.round > 1, 2, -1)))
    bad = one.round == 3
    told = relation(bad, np.ones_like(bad), one)
    assert told == "rounds behind one that accepted nothing (the same rows: round 3 only)"


def test_a_condition_that_few_rows_meet_is_no_more_than_fitting():
    bad = (SEEN.index == SEEN.count - 1) & (SEEN.round == 0)
    told = relation(bad, np.ones_like(bad), SEEN)
    assert told.startswith(
        f"too few rows (2 bad of {len(bad)}) to tell a condition: the last row of every pass, in prefill"
    )


def test_two_conditions_are_told_only_where_the_second_is_worth_its_words():
    """One clean row of fifty is more likely within noise than a condition of its own."""
    bad = (SEEN.round > 0) & (np.arange(len(SEEN.round)) != len(SEEN.round) - 3)
    count = int(bad.sum())
    assert relation(bad, np.ones_like(bad), SEEN) == f"verify rows only: {count} of {count + 1} rows, and no other"


def test_three_conditions_are_told_where_two_leave_many_clean_rows():
    bad = (TOKENS.token >= 700) & (TOKENS.round == 0) & (TOKENS.position >= 32)
    told = relation(bad, np.ones_like(bad), TOKENS)
    assert told == "from 32 = sliding_window on, in prefill rows, of these token ids from 700 on"
    assert next(separating(bad, np.ones_like(bad), TOKENS))[0].says == told


def test_nothing_is_never_told_with_fewer():
    accepts = replace(SEEN, accepts=np.where(SEEN.round > 0, SEEN.round % 3, -1))
    (quantity,) = (one for one in QUANTITIES if one.fact == "accepts")
    assert [bound.says for bound in bounds_of(quantity, accepts, accepts.accepts == 0)] == [
        "rounds that accept nothing"
    ]
    some = [bound.says for bound in bounds_of(quantity, accepts, accepts.accepts == 1)]
    assert some[0] == "rounds that accept one draft" and "rounds that accept one draft or fewer" in some


def test_rows_at_random_have_nothing_in_common():
    rng = np.random.default_rng(2)
    told = [relation(rng.random(len(SEEN.position)) < 0.1, np.ones(len(SEEN.position), bool), SEEN) for _ in range(50)]
    assert set(told) == {""}


def test_a_single_bad_row_proves_no_condition():
    bad = (SEEN.position == 32) & (SEEN.prompt == 0)
    assert relation(bad, np.ones_like(bad), SEEN) == ""
    few = SEEN.position == 0
    inside = SEEN.position < 2
    assert relation(few, inside, SEEN).startswith("too few rows (2 bad of 4)")


def test_rows_that_are_not_judged_are_neither_bad_nor_clean():
    bad = (SEEN.position >= 32) & (SEEN.position != 50)
    assert relation(bad, SEEN.position != 50, SEEN) == "from 32 = sliding_window on"


def test_the_lengths_of_a_config_are_read_as_plain_json(tmp_path):
    file = tmp_path / "config.json"
    nested = {
        "sliding_window": 32,
        "head_dim": 32,
        "use_window": True,
        "rope": {"original_max_position_embeddings": 64},
    }
    file.write_text(json.dumps(nested))
    assert dict(_numbers(_config(file.parent))) == {"sliding_window": 32, "original_max_position_embeddings": 64}
    for broken in ("{", "[" * 100_000, "3", " " * (limits.CONFIG_BYTES + 1)):
        file.write_text(broken)
        assert dict(_numbers(_config(file.parent))) == {}
    assert dict(_numbers(_config(tmp_path / "none"))) == {}


def test_a_rows_number_in_its_pass_begins_anew_with_every_pass(shallow_golden):
    rows = stage_rows(
        shallow_golden, shallow_golden, shallow_golden.declared["verify.logits"], device="float32", mode="chained"
    )
    found = Facts.of(shallow_golden, rows)
    starts = [at for at, row in enumerate(found.index.tolist()) if row == 0]
    passes = {(prompt, round_) for prompt, round_ in zip(rows.prompt.tolist(), rows.round.tolist(), strict=True)}
    assert len(starts) == len(passes) > 2
    for first, end in zip(starts, [*starts[1:], len(found.index)], strict=True):
        assert found.index[first:end].tolist() == list(range(end - first))
        assert found.count[first:end].tolist() == [end - first] * (end - first)


def test_what_a_row_comes_behind_is_a_condition():
    """What the round before accepted, how much was cached, and the layer, where these are known."""
    before = replace(SEEN, accepted=np.where(SEEN.round > 1, SEEN.round % 3, -1))
    bad = before.accepted == 0
    assert relation(bad, np.ones_like(bad), before) == "rounds behind one that accepted nothing"
    before = replace(SEEN, cached=SEEN.position - SEEN.index)
    bad = before.cached >= 79
    assert relation(bad, np.ones_like(bad), before) == "passes with 79 cached rows or more"
    of_layers = replace(SEEN, layer=SEEN.position % 4)
    bad = of_layers.layer % 2 == 1
    assert relation(bad, np.ones_like(bad), of_layers) == "odd layers only"
    bad &= of_layers.round >= 4
    assert relation(bad, np.ones_like(bad), of_layers) == "from round 4 on, odd layers only"


def test_a_condition_holds_for_other_rows_by_the_same_rule():
    """It is found on some rows and holds, or not, for any: of another stage, another prompt."""
    bad = SEEN.position % 16 == 15
    predicate, believed = next(separating(bad, np.ones_like(bad), SEEN))
    other = facts("drafter", rounds=2)
    assert believed and np.array_equal(predicate.holds(other), other.position % 16 == 15)


def test_rows_that_tell_nothing_leave_the_condition_simple():
    """Rows that are alike with and without a hypothesis are not judged: a window's first rows say nothing of tiles."""
    tile = SEEN.position % 16 == 0
    judged = SEEN.position >= 32
    assert relation(tile & judged, np.ones_like(tile), SEEN) != "every 16th position, from 0 on"
    assert next(separating(tile & judged, judged, SEEN))[0].says == "every 16th position, from 0 on"


def test_how_many_drafts_a_pass_may_have_is_no_length_of_a_sequence():
    said = {"num_parallel_positions": 8, "sliding_window": 32, "rope": {"original_max_position_embeddings": 64}}
    assert dict(_numbers(said)) == {"sliding_window": 32, "original_max_position_embeddings": 64}
