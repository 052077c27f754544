"""Facts of rows that are not known, by hand, and those of a pass, a choice, a drafter's known tokens and a config."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

from parity.compare import facts
from parity.compare.facts import Facts, _committed, _due, _largest, _lengths, _numbers
from parity.compare.rows import Clock, stage_rows

K = 4

NONE = ("cached", "accepted", "layer", "token", "accepts", "left", "due", "again", "largest", "best", "least_share")


def of(round_=(0, 0, 1, 1, 1), index=(0, 1, 0, 1, 2), position=(0, 1, 5, 6, 7), **more) -> Facts:
    """A prefill of two rows and a round of three."""
    count = np.array([2, 2, 3, 3, 3])
    told = [np.array(one) for one in (round_, position, index)]
    return Facts(np.zeros(5, int), *told, count, np.full(5, 2), np.full(5, 1), "drafter", **more)


@pytest.mark.parametrize("name", NONE)
def test_what_is_not_known_is_minus_one_of_every_row(name):
    assert of().known(name).tolist() == [-1] * 5
    assert of(**{name: np.arange(5)}).known(name).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "due"), [("row", [0, 1, 2]), ("ahead", [2, 1, 0]), ("start", [5, 5, 5]), ("end", [7, 7, 7])]
)
def test_places_in_a_pass_are_told_behind_the_prefill(name, due):
    assert of().known(name).tolist() == [-1, -1, *due]


def test_of_the_experts_of_a_row_the_highest_and_the_lowest_are_told():
    chosen = {
        expert: np.array(rows, bool)
        for expert, rows in {0: "11001", 3: "01100", 5: "11010"}.items()
        for rows in [[*map(int, rows)]]
    }
    assert of(experts=chosen).known("highest").tolist() == [5, 5, 3, 5, 0]
    assert of(experts=chosen).known("lowest").tolist() == [0, 0, 3, 5, 0]
    assert of().known("highest").tolist() == of().known("lowest").tolist() == [-1] * 5


def rows(golden, name: str = "verify.tokens", part: str = "tokens", side: str = "target", axes="S", **more):
    named = SimpleNamespace(name=name, stage=SimpleNamespace(part=part, side=side, axes=axes))
    plain = {"prompt": np.array([0, 0, 1]), "round": np.array([0, 2, 1]), "sketched": False}
    return SimpleNamespace(golden=np.array(golden), named=named, **plain | more)


def test_the_ids_of_a_choice_are_due_and_of_nothing_else(monkeypatch):
    monkeypatch.setattr(facts, "CHOSEN", ("tokens",))
    assert _due(rows([4, 0, 7])).tolist() == [4, 0, 7] and _due(rows([4, 0, 7])).dtype == np.int64
    for other in (rows([4.0, 0, 7]), rows([[4], [0], [7]]), rows([4, 0, 7], part="positions")):
        assert _due(other).tolist() == [-1] * 3


def test_the_largest_magnitude_is_of_whole_rows_of_numbers():
    numbers = [[[1.0, -3.0]], [[0.0, 0.0]], [[2.0, 0.5]]]
    assert _largest(rows(numbers)).tolist() == [3, 0, 2] and _largest(rows(numbers)).dtype == np.float64
    for other in (rows(numbers, sketched=True), rows([1, 2, 3]), rows([True] * 3), rows(np.zeros((3, 0)))):
        assert _largest(other).tolist() == [-1] * 3


@pytest.mark.parametrize(
    ("name", "side", "axes", "due"),
    [
        ("drafter.layers.0.out", "drafter", "C", [-1, 12, 21]), ("drafter.logits", "drafter", "K", [-1, 1, 1]),
        ("drafter.pre_head_hidden", "drafter", "K", [-1, 1, 1]), ("drafter.draft_tokens", "drafter", "K", [-1, 1, 1]),
        ("drafter.block", "drafter", "B", [-1, 1, 1]), ("target.layers.0.out", "target", "S", [-1, -1, -1]),
    ],
)  # fmt: skip
def test_known_tokens_of_a_drafters_pass_and_one_of_its_head_or_block(name, side, axes, due, monkeypatch):
    clocks = [SimpleNamespace(committed=lambda round_, base=base: base + round_) for base in (10, 20)]
    monkeypatch.setattr(facts, "Clock", SimpleNamespace(all_of=lambda golden: clocks))
    assert _committed(None, rows([1, 2, 3], name, side=side, axes=axes)).tolist() == due


def test_the_lengths_of_the_own_checkpoint_come_first(monkeypatch):
    configs = {"t": {"sliding_window": 8, "rope": {"max_position": 64}}, "d": {"sliding_window": 4, "block_size": 16}}
    monkeypatch.setattr(facts, "_config", lambda folder: configs[str(folder)])
    monkeypatch.setattr(facts, "LENGTHS", ("window", "position", "size"))
    model = SimpleNamespace(target=SimpleNamespace(path="t"), drafter=SimpleNamespace(path="d"))
    golden = SimpleNamespace(manifest=SimpleNamespace(model=model))
    both = {"max_position": 64, "block_size": 16}
    assert _lengths(golden, "target") == both | {"sliding_window": 8} == _lengths(golden, "verify")
    assert _lengths(golden, "drafter") == both | {"sliding_window": 4}


def test_a_length_is_a_whole_number_above_0_of_such_a_name(monkeypatch):
    monkeypatch.setattr(facts, "LENGTHS", ("window", "size"))
    part = {"window": 1, "size": 0, "a_size": -1, "num_window": 3, "b_size": True, "c_size": 2.0, "rank": 9}
    assert [*_numbers(part | {"inner": {"hidden_size": 5, "deep": {"window_b": 6}}})] == [
        ("window", 1), ("hidden_size", 5), ("window_b", 6),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["verify.logits", "drafter.layers.0.attn_out", "kv.target.0.k"])
def test_positions_that_an_earlier_pass_had_are_told_behind_the_prefill(shallow_golden, name):
    """What a rollback discarded is computed again; a cache's rows are of the pass that the round before verified."""
    stage = stage_rows(shallow_golden, shallow_golden, shallow_golden.declared[name], device="float32", mode="chained")
    told = Facts.of(shallow_golden, stage).again
    for prompt, clock in enumerate(Clock.all_of(shallow_golden)):
        assert set(told[(stage.prompt == prompt) & (stage.round == 0)].tolist()) <= {-1}
        had: set[int] = set()
        for round_ in range(1, clock.rounds):
            here = (stage.prompt == prompt) & (stage.round == round_)
            if name.startswith("kv"):
                had = set(range(clock.length(round_ - 2) + K + 1 if round_ > 1 else clock.prompt))
            else:
                had |= set(stage.position[(stage.prompt == prompt) & (stage.round == round_ - 1)].tolist())
            assert told[here].tolist() == [int(at in had) for at in stage.position[here].tolist()]
    assert {0, 1} <= set(told.tolist())


def test_facts_of_several_stages_are_joined_whatever_is_known_of_them():
    """Every fact of rows, by name: one that was left out had the rows of one stage."""
    some = of(again=np.arange(5), due=np.arange(5))
    both = Facts.joined([some, of()])
    arrays = {each.name for each in fields(Facts)} - {"side", "experts", "lengths"}
    assert {len(both.known(name)) for name in arrays} == {10}
    assert both.again.tolist() == [0, 1, 2, 3, 4, -1, -1, -1, -1, -1]
