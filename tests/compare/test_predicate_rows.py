"""Conditions by hand: every family over the rows of a few passes, row by row, and how many choices each came of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import predicates, tiles
from parity.compare.facts import Facts
from parity.compare.predicate import Predicate
from parity.compare.predicates import alone
from parity.compare.tiles import FITTING, MISSED, ODD, PERIODS, nth

PROMPTS, LATER, C = (9, 6), (4, 3, 4), 2
"""Two prompts; rounds of so many rows behind each, which begin three positions apart; committed rows of a round."""

LABELS = [(prompt, 0, at, at, length, length, -1) for prompt, length in enumerate(PROMPTS) for at in range(length)]
LABELS += [
    (prompt, round_, length + 3 * round_ - 3 + at, at, count, length, C)
    for prompt, length in enumerate(PROMPTS)
    for round_, count in enumerate(LATER, 1)
    for at in range(count)
]
ROWS = [
    SimpleNamespace(number=number, prompt=prompt, round=r, position=at, index=i, count=count, length=length)
    for number, (prompt, r, at, i, count, length, _) in enumerate(LABELS)
]
EXPERTS = {0: (0, 4), 3: (1, 4), 7: (1, 2, 5)}
"""Experts that numbers of rows modulo 6 have; row 3 of each six has none."""

CHOSEN = {expert: np.array([row.number % 6 in rests for row in ROWS]) for expert, rests in EXPERTS.items()}
BEST = np.array([{0: 0, 1: 3, 2: 7, 4: 3, 5: 7}.get(row.number % 6, -1) for row in ROWS])
FACTS = Facts(*np.array(LABELS).T, "drafter", CHOSEN, {"window": 8}, best=BEST, token=np.arange(len(ROWS)) * 3)
EVERY = np.ones(len(ROWS), bool)


def rows_of(*bad) -> np.ndarray:
    return np.array([row in bad for row in range(len(ROWS))])


def found(family, bad=EVERY, facts=FACTS) -> dict[str, list[int]]:
    """Numbers of the rows of which each condition holds, by its words."""
    made = {one.says: one for one in family(facts, bad)}
    return {says: np.flatnonzero(one.holds(facts)).tolist() for says, one in made.items()}


def due(**conditions) -> dict[str, list[int]]:
    return {says: [row.number for row in ROWS if holds(row)] for says, holds in conditions.items()}


def test_prefill_and_later_passes_are_told_by_the_side():
    both = due(**{"prefill rows only": lambda r: r.round == 0, "rows of later rounds only": lambda r: r.round > 0})
    assert found(predicates.passes) == both
    for side in ("target", "verify"):
        told = found(predicates.passes, facts=replace(FACTS, side=side))
        assert [*told] == ["prefill rows only", "verify rows only"] and [*told.values()] == [*both.values()]
    assert [one.behind for one in predicates.passes(FACTS, EVERY)] == ["in prefill rows", "in rows of later rounds"]


def test_ends_of_passes_and_of_later_ones():
    assert found(predicates._ends) == due(**{
        "position 0 only": lambda r: r.position == 0,
        "row 0 of every pass": lambda r: r.index == 0,
        "the last row of every pass": lambda r: r.index == r.count - 1,
        "every row of a pass but its first": lambda r: r.index > 0,
        "every row of a pass but its last": lambda r: r.index < r.count - 1,
        "every position but 0": lambda r: r.position > 0,
        "row 0 of every later pass": lambda r: r.round and r.index == 0,
        "the last row of every later pass": lambda r: r.round and r.index == r.count - 1,
        "every row of a later pass but its first": lambda r: r.round and r.index > 0,
        "every row of a later pass but its last": lambda r: r.round and r.index < r.count - 1,
    })  # fmt: skip


def test_committed_and_masked_rows_where_a_pass_has_such():
    assert found(predicates._drafted) == due(**{
        "masked rows only": lambda r: r.round and r.index >= 2,
        "committed rows only": lambda r: not r.round or r.index < 2,
        "the NTP row only": lambda r: r.round and r.index == 1,
        "the first masked row only": lambda r: r.round and r.index == 2,
    })  # fmt: skip
    none = np.full(len(ROWS), -1)
    assert found(predicates._drafted, facts=replace(FACTS, committed=none)) == {}
    assert len(found(predicates._drafted, facts=replace(FACTS, committed=np.where(rows_of(0), 0, none)))) == 4


def test_where_nothing_is_committed_every_row_is_masked():
    nothing = replace(FACTS, committed=np.where(FACTS.round > 0, 0, -1))
    told = found(predicates._drafted, facts=nothing)
    later = [row.number for row in ROWS if row.round]
    assert told["masked rows only"] == later and told["the NTP row only"] == []
    assert told["the first masked row only"] == [row for row in later if ROWS[row].index == 0]


def test_named_places_are_told_one_off_as_well():
    told = found(predicates._thresholds)
    assert told == due(**{
        "from the prompt's end on": lambda r: r.position >= r.length,
        "before the prompt's end": lambda r: r.position < r.length,
        "from 8 = window on": lambda r: r.position >= 8,
        "before 8 = window": lambda r: r.position < 8,
        "from the prompt's end - 1 on": lambda r: r.position >= r.length - 1,
        "before the prompt's end - 1": lambda r: r.position < r.length - 1,
        "from 7 = window - 1 on": lambda r: r.position >= 7,
        "before 7 = window - 1": lambda r: r.position < 7,
        "from the prompt's end + 1 on": lambda r: r.position >= r.length + 1,
        "before the prompt's end + 1": lambda r: r.position < r.length + 1,
        "from 9 = window + 1 on": lambda r: r.position >= 9,
        "before 9 = window + 1": lambda r: r.position < 9,
    })  # fmt: skip
    assert [*told][:2] == ["from the prompt's end on", "before the prompt's end"]


@pytest.mark.parametrize(("last", "powers"), [(7, (2, 4)), (8, (2, 4, 8)), (1, ()), (2, (2,))])
def test_powers_of_two_are_told_up_to_the_last_position(last, powers):
    facts = replace(FACTS, position=np.minimum(FACTS.position, last))
    assert found(tiles.powers, facts=facts) == {
        f"from position {power} on": [row.number for row in ROWS if min(row.position, last) >= power]
        for power in powers
    }


def has(row, expert: int) -> bool:
    return row.number % 6 in EXPERTS[expert]


def test_rows_of_an_expert_and_of_the_best_ones():
    assert found(predicates._experts) == due(**{
        "expert 0's rows": lambda r: has(r, 0),
        "expert 3's rows": lambda r: has(r, 3),
        "expert 7's rows": lambda r: has(r, 7),
        "rows whose best expert has the highest number": lambda r: r.number % 6 in (0, 2, 4, 5),
        "rows whose best expert has the lowest number": lambda r: r.number % 6 in (0, 1, 2, 5),
    })  # fmt: skip
    assert predicates._of_expert(FACTS, 1).tolist() == [False] * len(ROWS)


def test_experts_of_one_group_are_of_a_rank_or_tile_of_a_divisor_of_their_number():
    """Pairs 3 and 7, 0 and 3, and one alone: of eight experts in groups of two, or of four."""
    single, low = (lambda r: r.number % 6 in (0, 2, 5)), (lambda r: r.number % 6 in (0, 2, 4, 5))
    assert found(predicates._groups) == due(**{
        "rows whose experts are of one group of 2": single,
        "rows with experts of several groups of 2": lambda r: r.number % 6 in (1, 4),
        "rows whose experts are of one group of 4": low,
        "rows with experts of several groups of 4": lambda r: r.number % 6 == 1,
    })  # fmt: skip
    assert found(predicates._groups, facts=replace(FACTS, experts={})) == {}
    six = replace(FACTS, experts={5: CHOSEN[7]})
    assert [says[-1] for says in found(predicates._groups, facts=six)] == ["2", "2", "3", "3"]


def test_every_other_round_is_told_without_the_prefill():
    assert found(predicates._rounds) == due(**{
        "odd rounds only": lambda r: r.round % 2 == 1,
        "even rounds behind the prefill only": lambda r: r.round == 2,
    })  # fmt: skip


def numbered(says: str, facts=FACTS, bad=EVERY, family=tiles.periods) -> Predicate:
    (one,) = [one for one in family(facts, bad) if one.says == says]
    return one


@pytest.mark.parametrize(
    ("bad", "says", "holds", "tried"),
    [
        (lambda r: r.position in (3, 7), "every 4th position, from 3 on", lambda r: r.position % 4 == 3, 4),
        (lambda r: r.position == 5, "every 2nd position, from 1 on", lambda r: r.position % 2 == 1, 2),
        (lambda r: r.index == 4, "every 8th row of a pass, from 4 on", lambda r: r.index % 8 == 4, 8),
        (lambda r: r.position in (8, 9), "the first 2 positions of each 8", lambda r: r.position % 8 < 2, 8),
        (lambda r: r.position in (6, 7), "the last 2 positions of each 8", lambda r: r.position % 8 > 5, 8),
        (lambda r: r.index % 4 > 0, "every row of a pass but each 4th", lambda r: r.index % 4 > 0, 4),
        (lambda r: r.index in (2, 5), "every row of a pass but each 8th", lambda r: r.index % 8 > 0, 8),
    ],
)
def test_places_in_a_period_are_read_off_the_bad_rows(bad, says, holds, tried):
    one = numbered(says, bad=np.array([bad(row) for row in ROWS]))
    assert (
        np.flatnonzero(one.holds(FACTS)).tolist() == [row.number for row in ROWS if holds(row)] and one.tried == tried
    )


def test_what_fills_a_period_or_neither_of_its_ends_is_no_place_in_it():
    assert found(tiles.periods) == {} == found(tiles.periods, bad=~EVERY)
    middle = np.array([row.position in (5, 6) for row in ROWS])
    assert not [says for says in found(tiles.periods, bad=middle) if "each" in says and "position" in says]
    assert {says.split()[1] for says in found(tiles.periods, bad=rows_of(0))} == {"2nd", "4th", "8th", "16th"}


def test_odd_periods_are_of_rows_and_every_other_token_is_of_ids():
    bad = np.array([row.index in (2, 5) for row in ROWS])
    told = {one.says: one for one in tiles.odd_periods(FACTS, bad)}
    assert [*told] == ["every 3rd row of a pass, from 2 on"] and told.popitem()[1].tried == 3 * 7
    one = numbered("every 6th row of a pass, from 1 on", bad=FACTS.index == 1, family=tiles.odd_periods)
    assert np.flatnonzero(one.holds(FACTS)).tolist() == [row.number for row in ROWS if row.index % 6 == 1]
    for rest, which in ((0, "even"), (1, "odd")):
        one = numbered(f"{which} token ids", bad=FACTS.token % 2 == rest, family=tiles.odd_periods)
        assert one.tried == 2 and (one.holds(FACTS) == (FACTS.token % 2 == rest)).all()
    unknown = replace(FACTS, token=np.where(EVERY, -2, 0))
    assert not [one for one in tiles.odd_periods(unknown, FACTS.index == 1) if "token" in one.says]
    assert found(tiles.odd_periods, bad=~EVERY) == {}


def test_all_but_the_first_rows_of_tiles_are_of_sixteen_at_the_most():
    """Passes of 70 rows, of which the first of each 64 is clean."""
    index = np.arange(70)
    zero = np.zeros(70, int)
    facts = Facts(zero, zero, index, index, zero + 70, zero + 70, zero - 1, "target", {}, {})
    told = [one.says for one in tiles.periods(facts, index % 64 > 0) if "but each" in one.says]
    assert told == []
    told = [one.says for one in tiles.periods(facts, index % 16 > 0) if "but each" in one.says]
    assert told == ["every row of a pass but each 16th"] and MISSED == 16


def test_periods_are_of_tiles_and_of_rows_that_a_kernel_takes_at_once():
    assert PERIODS == (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096) and ODD == (3, 5, 6, 7, 9, 10, 12)
    assert FITTING == 64 and Predicate("a", lambda facts: facts.position > 3).tried == 1
    told = [one.says.split()[1] for one in tiles.odd_periods(FACTS, FACTS.index == 1) if "row" in one.says]
    assert told == ["3rd", "5th", "6th", "7th"] and FACTS.index.max() == 8  # no longer ones than any pass
    longer = replace(FACTS, index=np.where(FACTS.index == 8, 9, FACTS.index))
    told = [one.says.split()[1] for one in tiles.odd_periods(longer, FACTS.index == 1) if "row" in one.says]
    assert told == ["3rd", "5th", "6th", "7th", "9th"]


def test_where_in_a_tile_later_passes_begin_and_end():
    told = found(tiles.of_passes)
    start, end = (lambda r: r.position - r.index), (lambda r: r.position - r.index + r.count - 1)
    wanted = {}
    for tile in (4, 8):
        for name, at in (("begin", start), ("end", end)):
            for where, rest in (("first", 0), ("last", tile - 1)):
                says = f"later passes that {name} at the {where} position of a tile of {tile}"
                wanted[says] = lambda r, at=at, rest=rest, tile=tile: r.round and at(r) % tile == rest
        wanted |= {
            f"later passes that begin inside a tile of {tile}": lambda r, tile=tile: r.round and start(r) % tile > 0,
            f"later passes over the end of a tile of {tile}":
                lambda r, tile=tile: r.round and start(r) // tile < end(r) // tile,
            f"rows behind the end of a tile of {tile} in later passes":
                lambda r, tile=tile: r.round and start(r) // tile < r.position // tile,
            f"rows of later passes behind the sequence's last whole tile of {tile}":
                lambda r, tile=tile: r.round and r.position >= (end(r) + 1) // tile * tile,
        }  # fmt: skip
    assert {says: rows for says, rows in told.items() if not says.endswith(" 16") and " 16 " not in says} == due(
        **wanted
    )
    assert {one.tried for one in tiles.of_passes(FACTS, EVERY)} == {FITTING}
    assert max(row.position for row in ROWS) == 18 and len(told) == 3 * 8


def test_behind_the_last_whole_tile_of_a_prompt_the_largest_first():
    told = found(tiles.prompt_tiles)
    assert [*told] == [f"behind the prompt's last whole tile of {tile}" for tile in (8, 4, 2)]
    assert told == due(**{
        "behind the prompt's last whole tile of 8": lambda r: r.length == 9 and r.position >= 8,
        "behind the prompt's last whole tile of 4": lambda r: r.position >= (8 if r.length == 9 else 4),
        "behind the prompt's last whole tile of 2": lambda r: r.position >= (8 if r.length == 9 else 6),
    })  # fmt: skip


def test_layers_are_conditions_where_rows_are_of_several():
    layer = np.array([row.number % 4 - 1 for row in ROWS])
    facts = replace(FACTS, layer=layer)
    assert [*predicates.layers(FACTS, EVERY)] == [*predicates.layers(facts, ~EVERY)] == []
    made = [*predicates.layers(facts, layer > 0)]
    assert {one.says: (sorted({*layer[one.holds(facts)].tolist()}), one.tried) for one in made} == {
        "layer 1 only": ([1], 4), "odd layers only": ([1], 1), "even layers only": ([0, 2], 1),
        "from layer 1 on": ([1, 2], 4), "up to layer 2": ([0, 1, 2], 4),
    }  # fmt: skip
    assert all(one.behind == one.says for one in made)
    eight = np.array([row.number % 8 for row in ROWS])
    turns = [one.says for one in predicates.layers(replace(FACTS, layer=eight), np.isin(eight, (1, 4, 7)))]
    assert "every third layer from 1 on" in turns and "layers 1, 4 and 7" not in turns


def test_both_of_two_conditions_hold_and_chances_multiply():
    one = Predicate("a", lambda facts: facts.position > 3, 2, of=frozenset({"x"}))
    two = Predicate("b only", lambda facts: facts.position < 6, 3, behind="in b", of=frozenset({"y"}))
    for both in (one.inside(two), two.inside(one)):
        assert (both.says, both.tried, both.of) == ("a, in b", 6, {"x", "y"})
        assert set(FACTS.position[both.holds(FACTS)].tolist()) == {4, 5}
    assert one.inside(replace(one, says="c")).says == "a, of these c"
    assert two.inside(replace(two, says="c", behind="in c")).says == "b only, in c"


def test_every_condition_says_what_it_asks_of():
    told = {one.says: one.of for one in alone(FACTS, FACTS.position == 5)}
    assert told["position 0 only"] == {"row"} and told["expert 3's rows"] == {"expert"} and all(told.values())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (12, "12th"),
        (13, "13th"),
        (32, "32nd"),
        (112, "112th"),
        (512, "512th"),
        (22, "22nd"),
    ],
)
def test_numbers_are_told_in_order(number, said):
    assert nth(number) == said
