"""Rows in other places than their tokens': each hypothesis against one pass over the rows that it leaves in a cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from parity.references.capture import ignore
from parity.references.hypotheses.inference import chunk_size
from parity.references.hypotheses.stale import ALL, ALONE, AS_EMITTED
from parity.references.hypotheses.surplus import EMPTY, FIRST, LAST, RIGHT, SLOTS
from parity.trace import Trace
from tests.references.hypothesis_case import BY_ID, Case, differ, state
from tests.sample import WHOLE

K = 4
STALE, SEED, SLOT, POSITION = "rollback-behind-stale", "commit-seed-row", "", "-by-position"


@pytest.fixture(scope="module")
def case(tiny):
    return Case(tiny)


def free(case, name, value, rounds=2):
    """The tensors of a run on its own tokens, and those tokens."""
    record = Trace(case.names)
    result = case.counterfactuals.run([(BY_ID[name], value)], case.ids, case.budget, record, rounds)
    return record.tensors, result


@torch.no_grad()
def target_pass(case, ids: Sequence[int], positions: Sequence[int], limits: Sequence[int]) -> np.ndarray:
    """Logits [S, V] of one pass: row i sees slots up to limit i, in sliding layers those inside its window."""
    target = case.counterfactuals.loop.target
    target.reset(ignore)
    distance = torch.tensor(limits)[:, None] - torch.arange(len(ids))
    seen = {"full_attention": distance >= 0}
    seen["sliding_attention"] = seen["full_attention"] & (distance < target.config.sliding_window)
    masks = {kind: torch.where(one, 0.0, torch.finfo(torch.float32).min)[None, None] for kind, one in seen.items()}
    places = torch.tensor(positions)[None]
    return target.model(torch.tensor(ids)[None], masks, position_ids=places, use_cache=False).logits[0].numpy()


@torch.no_grad()
def drafter_pass(case, rows, positions: Sequence[int], limits: Sequence[int]) -> np.ndarray:
    """Logits of one pass over the rows of several, (ids [W], taps [C, T*H]) each: row i sees slots up to limit i."""
    drafter = case.counterfactuals.loop.drafter
    ids = torch.from_numpy(np.concatenate([ids for ids, _ in rows]))
    masked = (drafter.mask_hidden[0].expand(len(ids) - len(taps), -1) for ids, taps in rows)
    hidden = drafter.fuse(
        torch.cat([torch.cat((torch.from_numpy(r[1]), m)) for r, m in zip(rows, masked, strict=True)])
    )
    mask = torch.arange(len(ids)) <= torch.tensor(limits)[:, None]
    return drafter(ids[None], hidden[None], torch.tensor(positions)[None], mask[None, None])[0].numpy()


def passes(tensors, rounds: Sequence[int]):
    """The drafter's rows of these rounds."""
    return [(tensors[number, "drafter.input_ids"], tensors[number, "drafter.taps"]) for number in rounds]


def equal(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("late", ["", "-late"])
@pytest.mark.parametrize("whose", [FIRST, LAST])
def test_verify_runs_behind_a_seed_row(whose, late, case):
    made, result = free(case, f"{SEED}{late}", whose)
    start, prompt = len(case.ids), list(case.ids)
    assert made[0, "kv.target.length"] == start + (not late)
    seed = result.emitted[0] if whose == FIRST else prompt[-1]
    kept = [*prompt, seed]
    for number in (1, 2):
        ids = [*kept, result.emitted[len(kept) - start - 1], *made[number, "drafter.draft_tokens"]]
        equal(made[number, "verify.logits"], target_pass(case, ids, range(len(ids)), range(len(ids)))[-K - 1 :])
        kept = ids[: len(kept) + result.acceptance_length[number - 1]]
        assert made[number, "kv.target.length"] == len(made[number, "kv.target.0.k"]) == len(kept)


@pytest.mark.parametrize("beside", [(), (SEED,), (f"{SEED}-late",)])
def test_the_first_round_drafts_from_the_first_tokens_own_hidden(beside, case):
    record, loop = Trace(case.names), case.counterfactuals.loop
    assumed = [(BY_ID["tap-first-token"], None), *((BY_ID[name], FIRST) for name in beside)]
    emitted = case.counterfactuals.run(assumed, case.ids, case.budget, record, rounds=1).emitted
    target_pass(case, [*case.ids, emitted[0]], range(len(case.ids) + 1), range(len(case.ids) + 1))
    equal(record.tensors[1, "drafter.taps"], loop.target.taps(loop.tap_inputs)[-1:].numpy())
    rows = len(case.ids) + len(beside) + len(emitted) - 1
    assert record.tensors[1, "kv.target.length"] == rows


@pytest.mark.parametrize("rotated", [SLOTS, RIGHT])
@pytest.mark.parametrize("name", [f"{SEED}-drafter", f"{SEED}-late-drafter", "input-prefill-too-long"])
def test_the_drafter_runs_behind_a_seed_row(name, rotated, case):
    within = name == "input-prefill-too-long"
    made, result = free(case, name, rotated if within else (FIRST, rotated))
    rows, before = passes(made, (0, 1)), len(case.ids) - 1
    seed = (np.array(result.emitted[:1]), made[1, "drafter.taps"][:1])
    rows = rows if within else [rows[0], seed, rows[1]]
    last = range(before + 1, before + 1 + K) if rotated == SLOTS else range(before, before + K)
    positions = [*range(before + 1), *last]
    equal(made[1, "drafter.logits"], drafter_pass(case, rows, positions, range(len(positions)))[-K:])
    assert made[1, "drafter.positions"].tolist() == positions[-K:]
    assert made[0, "kv.drafter.length"] == before + ("late" not in name)
    assert made[1, "kv.drafter.length"] == len(made[1, "kv.drafter.0.k"]) == before + 2


@pytest.mark.parametrize("late", ["", "-late"])
def test_an_empty_row_is_zeros_in_front_of_rows_that_rotate_one_further(late, case):
    start = len(case.ids)
    made, _ = free(case, f"{SEED}{late}", EMPTY, rounds=1)
    seeded, _ = free(case, f"{SEED}{late}", FIRST, rounds=1)
    k, other = made[1, "kv.target.0.k"], seeded[1, "kv.target.0.k"]
    assert not k[start].any() and other[start].any()
    equal(k[start + 1], other[start + 1])  # of the first layer: the same token at the same position
    made, _ = free(case, f"{SEED}{late}-drafter", (EMPTY, SLOTS), rounds=1)
    assert not made[1, "kv.drafter.2.v"][start - 1].any() and made[1, "kv.drafter.2.v"][start].any()


@pytest.mark.parametrize("delta", [1, -1, *([2] if WHOLE else ())])
@pytest.mark.parametrize("name", ["verify-start", "verify-slot"])
def test_a_verify_round_begins_in_another_slot_in_every_round(name, delta, case):
    start, rotates = len(case.ids), delta * (name == "verify-start")
    made, result = free(case, name, delta, rounds=3)
    emitted = [*case.ids, *result.emitted]
    layer = case.counterfactuals.loop.target
    for number in (1, 2, 3):
        k, length = made[number, "kv.target.0.k"], start + sum(result.acceptance_length[:number])
        assert len(k) == length == made[number, "kv.target.length"]
        assert all(not k[slot].any() for slot in range(start, start + delta))
        written = min(length, length + delta) - delta  # tokens whose row is in the cache: beyond them are rejected ones
        layer.reset(ignore)
        rotated = [*case.ids, *([0] * delta if rotates > 0 else [])][: start + rotates]
        with torch.no_grad():
            layer.forward(torch.tensor([*rotated, *emitted[start:written]]))
        true = layer.rows(0)[0].numpy()
        equal(k[start + delta : written + delta], true[start + rotates : written + rotates])
    for mode in ("local", "chained"):
        assert (
            case.first(case.run([(BY_ID[name], delta)], mode))
            == {
                "verify-start": "target.layers.0.q",
                "verify-slot": "target.layers.0.attn_out",
            }[name]
        )


@pytest.mark.parametrize("given", [ALL, AS_EMITTED, ALONE])
@pytest.mark.parametrize("limit", [POSITION, SLOT])
def test_target_rows_go_behind_rejected_ones(limit, given, case):
    made, result = free(case, f"{STALE}{limit}", given)
    start, length = len(case.ids), result.acceptance_length[0]
    assert length < K + 1, "nothing was rejected"
    ids = [*case.ids, result.emitted[0], *made[1, "drafter.draft_tokens"]]
    positions = [*range(len(ids)), *range(start + length, start + length + K + 1)]
    ids += [result.emitted[length], *made[2, "drafter.draft_tokens"]]
    slots = range(len(ids))
    equal(made[2, "verify.logits"], target_pass(case, ids, positions, slots if limit == SLOT else positions)[-K - 1 :])
    rows = len(ids) if given == ALL else start + sum(result.acceptance_length)
    assert made[2, "kv.target.length"] == len(made[2, "kv.target.3.v"]) == rows


@pytest.mark.parametrize("given", [ALL, AS_EMITTED, ALONE])
@pytest.mark.parametrize("limit", [POSITION, SLOT])
def test_drafter_rows_go_behind_placeholders(limit, given, case):
    made, result = free(case, f"{STALE}{limit}-drafter", given)
    before, committed = len(case.ids) - 1, result.acceptance_length[0]
    width = committed + K - 1
    positions = [*range(before + K), *range(before + 1, before + 1 + width)]
    limits = range(len(positions)) if limit == SLOT else positions
    equal(made[2, "drafter.logits"], drafter_pass(case, passes(made, (0, 1, 2)), positions, limits)[-K:])
    assert made[2, "drafter.positions"].tolist() == made[2, "drafter.slots"].tolist() == positions[-width:]
    rows = len(positions) if given == ALL else before + 1 + committed
    assert made[2, "kv.drafter.length"] == len(made[2, "kv.drafter.3.k"]) == rows


@pytest.mark.parametrize(
    ("name", "value", "side", "beside"),
    [
        ("rollback-too-near", "target", "target", [0, 1, 2, 2, 3]),
        ("rollback-too-near", "target once", "target", [0, 1, 1, 1, 1]),
        ("rollback-too-near", "drafter", "drafter", [0, 1, 2, 3, 4]),
        ("rollback-too-near", "drafter once", "drafter", [0, 1, 1, 1, 1]),
        ("rollback-too-far", "target", "target", [0, -1, -2, -3, -4]),
        ("rollback-too-far", "both once", "target", [0, -1, -1, -1, -1]),
        ("rollback-too-far", "both", "drafter", [0, -1, -2, -3, -4]),
    ],
)
def test_a_row_more_or_less_in_every_round_or_once(name, value, side, beside, case):
    """The third round accepts every draft: there the target has no row more to keep."""
    made = case.run([(BY_ID[name], value)], "chained").tensors
    place = f"kv.{side}.length"
    assert [int(made[number, place][0] - case.truth[number, place][0]) for number in range(5)] == beside


STALES = [f"{STALE}{limit}{side}" for limit in (SLOT, POSITION) for side in ("", "-drafter")]
NEW = [("tap-first-token", None)]
NEW += [(name, value) for name in (*STALES, "verify-start", "verify-slot") for value in BY_ID[name].values]


@pytest.mark.parametrize(("name", "value"), NEW)
def test_without_a_verify_round_nothing_changes_and_all_is_undone(name, value, case):
    before = state(case.counterfactuals.loop)
    record = Trace(case.names)
    case.counterfactuals.run([(BY_ID[name], value)], case.ids, 1, record)
    assert record.tensors.keys() == {place for place in case.truth if place[0] == 0}
    assert all(np.array_equal(value, case.truth[place]) for place, value in record.tensors.items())
    assert state(case.counterfactuals.loop) == before


@pytest.mark.parametrize("given", [ALL, AS_EMITTED])
@pytest.mark.parametrize("limit", [POSITION, SLOT])
def test_nothing_is_stale_where_every_draft_is_accepted(limit, given, case):
    """The target's cache then holds what was emitted and no more."""
    runs = []
    for assumed in ([], [(BY_ID[f"{STALE}{limit}"], given)]):
        runs.append(Trace(case.names))
        case.counterfactuals.run([(BY_ID["accept-all"], None), *assumed], case.ids, case.budget, runs[-1], rounds=2)
    (plain, stale) = (run.tensors for run in runs)
    assert plain[2, "accept.length"] == K + 1
    assert not any(differ(stale[place], plain[place]) for place in plain)


@pytest.mark.parametrize("side", ["", "-drafter"])
def test_stale_rows_that_outlast_what_is_put_back_are_seen_in_a_local_run(side, case):
    """A local run loads the golden's rows: behind them stay the rejected ones, seen and handed over."""
    made = case.run([(BY_ID[f"{STALE}{side}"], ALONE)], "local")
    of = "drafter" if side else "target"
    assert case.first(made) == f"{of}.layers.0.attn_out"
    wrong = {place[1] for place, value in made.tensors.items() if differ(value, case.truth[place])}
    layers = range(4 if side else 8)
    assert wrong == {
        *(f"{of}.layers.{n}.attn_out" for n in layers),
        *(f"kv.{of}.{n}.{part}" for n in layers for part in "kv"),
    }
    assert not any(differ(value, case.truth[place]) for place, value in made.tensors.items() if place[0] < 2), (
        "in the first round nothing is stale"
    )


@pytest.mark.parametrize("positions", ["0", "their tokens' own"])
def test_without_a_cache_a_pass_sees_its_own_rows_alone(positions, case):
    made, result = free(case, "drafter-no-cache", positions)
    assert not [place for place in made if "kv.drafter" in place[1] or (place[0] == 0 and "drafter" in place[1])]
    width = result.acceptance_length[0] + K - 1
    places = [place + (0 if positions == "0" else len(case.ids)) for place in range(width)]
    assert made[2, "drafter.positions"].tolist() == places
    equal(made[2, "drafter.logits"], drafter_pass(case, passes(made, (2,)), places, range(width))[-K:])


def test_rows_that_are_loaded_take_the_stale_ones_place(case):
    assert case.first(case.run([(BY_ID[STALE], AS_EMITTED)], "local")) is None
    assert case.first(case.run([(BY_ID[STALE], AS_EMITTED)], "chained")) == "target.layers.0.attn_out"


@pytest.mark.parametrize("side", ["", "-drafter"])
def test_a_mask_by_position_on_top_of_stale_rows_is_the_one_alone(side, case):
    """A diagnosis that names the stale rows first, where both masks leave the same rows, can still name the other."""
    by_position = (BY_ID[f"{STALE}{POSITION}{side}"], ALL)
    alone, both = (
        case.run(assumed, "chained") for assumed in ([by_position], [(BY_ID[f"{STALE}{side}"], ALL), by_position])
    )
    assert alone.tensors.keys() == both.tensors.keys()
    assert all(np.array_equal(value, both.tensors[place]) for place, value in alone.tensors.items())


def test_a_chunk_whose_ids_are_hidden_ends_at_the_first_wrong_row_of_the_first_layer():
    stage = (0, "drafter.layers.0.out")
    true = np.random.default_rng(5).normal(size=(20, 8))
    mine = true.copy()
    mine[6:] += 0.3
    mine[:6] *= 1.004
    assert chunk_size({stage: mine}, {stage: true, (0, "drafter.input_ids"): np.arange(20)}) == 7
    assert chunk_size({stage: true * 1.004}, {stage: true}) is None
    assert chunk_size({stage: true * 1.4}, {stage: true}) is None
