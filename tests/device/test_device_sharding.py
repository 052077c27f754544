"""Tensor parallelism: what each rank holds, that any number of ranks computes the same, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parity import device
from parity.device.checkpoint import Described
from parity.device.config import target_config
from parity.device.drafter_config import drafter_config
from parity.device.engines import numpy_engine, ranks
from parity.device.kernels.collectives import all_gather, all_reduce
from parity.device.kernels.head import greedy
from parity.device.sharding import Sharding, shard
from parity.errors import UsageError

CONFIGS = Path(__file__).parents[2] / "fixtures" / "configs"
CUT = dict.fromkeys(
    ("q", "q_bias", "sinks", "k", "k_bias", "v", "v_bias", "gate", "gate_bias", "up", "up_bias", "head"), -1
)
CUT |= {"o": -2, "down": -2}


@pytest.mark.parametrize("tp", [2, 4])
def test_the_ranks_parts_of_every_weight_are_the_whole(few_kv, tp):
    whole, parted = few_kv(), few_kv(tp=tp)
    for one, many in ((whole.target, parted.target), (whole.drafter, parted.drafter)):
        for weights, shared in (
            (one.outer, many.outer),
            (one.layers[0], many.layers[0]),
            (one.layers[-1], many.layers[-1]),
        ):
            for name, value in weights.items():
                np.testing.assert_array_equal(
                    joined(name, many.engine.hosts(shared[name])), one.engine.host(value), name
                )


def joined(name, parts):
    """The whole weight: heads, intermediate and vocabulary side by side, row-parallel biases added up, others alike."""
    if name in ("o_bias", "down_bias"):
        return np.sum(parts, axis=0)
    if name not in CUT:
        assert all(np.array_equal(part, parts[0]) for part in parts), name
        return parts[0]
    repeated = 2 if name[0] in "kv" and len(parts) == 4 else 1
    return np.concatenate(parts[::repeated], axis=CUT[name])


@pytest.mark.parametrize("tp", [2, 4])
def test_any_number_of_ranks_computes_the_same_stages(few_kv, traced, tp):
    traces = [traced(few_kv(tp=ranks)) for ranks in (1, tp)]
    assert traces[0].tensors.keys() == traces[1].tensors.keys()
    for (round_, stage), value in traces[0].tensors.items():
        np.testing.assert_allclose(
            traces[1].tensors[round_, stage], value, rtol=1e-3, atol=1e-4, err_msg=f"{stage} {round_}"
        )
    shown = {stage: how for (_, stage), (how, _) in traces[1].shards.items()}
    assert (
        shown["target.layers.0.q"] == "N" and shown["drafter.logits"] == "VD" and shown["target.embed"] == "replicated"
    )
    kv = "G" if tp == 2 else "G/2"
    assert {how for stage, how in shown.items() if stage.endswith((".k", ".v"))} == {kv}
    assert traces[1].shards[0, "target.layers.0.k"][1][0].shape == (24, 1, 20)


def test_kv_heads_repeated_in_turn_instead_of_side_by_side_would_show(few_kv, traced):
    """Ranks 0 1 0 1 where 0 0 1 1 is meant: every shape is right, half of the queries read the other kv head."""
    wrong = few_kv(tp=4)
    for weights in wrong.target.layers:
        for name in ("k", "k_bias", "v", "v_bias"):
            weights[name] = ranks.Ranks([weights[name].parts[rank] for rank in (0, 2, 0, 2)])
    seen, true = (traced(pipeline).tensors[0, "target.layers.0.attn_out"] for pipeline in (wrong, few_kv()))
    assert seen.shape == true.shape and np.abs(seen - true).max() > 0.1


def test_ranks_that_differ_are_named_or_shown_to_who_asks(few_kv, traced):
    pipeline = few_kv(tp=2)
    embed = pipeline.target.outer["embed"].parts
    pipeline.target.outer["embed"] = ranks.Ranks([embed[0], embed[1] * 2.0])
    with pytest.raises(RuntimeError, match=r"target\.embed: rank 1 differs from rank 0"):
        pipeline.prefill(np.arange(1, 25), 12, lambda stage, value: value)
    shown = traced(pipeline).shards[0, "target.embed"][1]
    np.testing.assert_array_equal(shown[1], 2 * shown[0])


def test_the_greedy_id_over_ranks_is_the_lowest_of_a_tie():
    machine = ranks.engine(numpy_engine, Sharding(3, {"target": 3, "drafter": 3}))
    rows = np.array([[0, 5, 1, 2, 5, 5], [7, 1, 2, 7, 9, 8], [0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]], np.float32)[None]
    ids = greedy(machine.shard(np.split(rows, 3, axis=-1)))
    assert [one.tolist() for one in machine.hosts(ids)] == 3 * [[[1, 4, 0, 5]]]


def test_collectives_over_ranks_and_over_one():
    machine = ranks.engine(numpy_engine, Sharding(2, {"target": 2, "drafter": 2}))
    x = machine.shard([np.array([[1.0, 2.0]], np.float32), np.array([[10.0, 20.0]], np.float32)])
    assert [one.tolist() for one in machine.hosts(all_reduce(x))] == 2 * [[[11, 22]]]
    assert [one.tolist() for one in machine.hosts(all_gather(x, -1))] == 2 * [[[1, 2, 10, 20]]]
    alone = numpy_engine.array(np.ones((1, 2), np.float32))
    assert all_reduce(alone) is alone and all_gather(alone, -1) is alone


def test_what_ranks_share_is_not_written_differently_by_each():
    machine = ranks.engine(numpy_engine, Sharding(2, {"target": 2, "drafter": 2}))
    shared, apart = machine.array(np.zeros((1, 2), np.float32)), machine.zeros((1, 2), np.float32)
    rows = machine.shard([np.ones((1, 2), np.float32), np.full((1, 2), 2, np.float32)])
    apart[:] = rows
    assert [one.tolist() for one in machine.hosts(apart)] == [[[1, 1]], [[2, 2]]]
    with pytest.raises(NotImplementedError, match="share"):
        shared[:] = rows
    with pytest.raises(TypeError, match="through the engine"):
        np.asarray(shared)


@pytest.mark.parametrize(
    ("tp", "says"),
    [
        (0, "tp: 0 is no number of ranks"),
        (True, "tp: True is no number of ranks"),
        (5, "5 ranks cannot share out the target's 8 attention heads"),
        (8, "8 ranks cannot share out the drafter's 4 attention heads"),
    ],
)
def test_a_number_of_ranks_that_leaves_a_remainder_is_refused(few_kv, tp, says):
    with pytest.raises(UsageError, match=says):
        few_kv(tp=tp)


@pytest.mark.parametrize(
    ("change", "drafter", "says"),
    [
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3},
            {},
            "4 ranks neither share out nor repeat the target's 3 kv heads",
        ),
        ({"intermediate_size": 30}, {}, "the target's 30 intermediate columns"),
        ({"vocab_size": 82}, {"vocab_size": 82}, "the target's 82 vocabulary entries"),
        ({}, {"draft_vocab_size": 50}, "the drafter's 50 draft vocabulary entries"),
    ],
)
def test_the_refusal_names_the_axis_and_the_model(checkpoints, builders, change, drafter, says):
    folders = checkpoints(builders.FEW_KV | change, builders.FEW_KV_DRAFTER | drafter)
    with pytest.raises(UsageError, match=says):
        device.load(*folders, 4, tp=4)


@pytest.mark.parametrize("size", ["20b", "120b"])
@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (2, 4), (4, 2), (8, 1), (16, 1), (64, 1)])
def test_the_published_shapes_leave_no_remainder(size, tp, kv_heads):
    assert shard(tp, *published(size)).local_kv_heads("target") == kv_heads


def published(size):
    target = target_config(Described(CONFIGS / f"gpt-oss-{size}"))
    return target, drafter_config(Described(CONFIGS / f"p-eagle-{size}"), target)


@pytest.mark.parametrize("tp", [3, 128])
def test_the_published_shapes_refuse_other_numbers_of_ranks(tp):
    with pytest.raises(UsageError, match=f"{tp} ranks cannot share out the target's 64 attention heads"):
        shard(tp, *published("20b"))


def test_shards_cut_through_mxfp4_blocks_because_they_are_decoded_first(tiny):
    """160 rows in four are 40 each, one block and a quarter; 2880 in eight are 360, eleven and a quarter."""
    folders = tiny / "target-mxfp4", tiny / "drafter"
    whole, parted = (device.load(*folders, 4, max_positions=32, tp=tp) for tp in (1, 4))
    for weights, shared in zip(whole.target.layers, parted.target.layers, strict=True):
        parts = parted.target.engine.hosts(shared["down"])
        assert parts[0].shape[1] % 32
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole.target.engine.host(weights["down"]))
