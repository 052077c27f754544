"""Ranks on a mesh of XLA devices: the numpy engine's stages, collectives inside the programs, nothing compiled anew."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="the xla engine needs jax: pip install 'parity-harness[xla]'")

import jax

from parity.device.engines import mesh
from parity.device.kernels import linear
from parity.device.kernels.collectives import all_gather, all_reduce
from parity.device.kernels.program import program
from parity.device.sharding import Sharding
from parity.errors import UsageError
from tests.sample import by_night

PROMPT = np.arange(1, 25)


@pytest.fixture(scope="module")
def four(few_kv):
    """Four ranks, two kv heads."""
    return few_kv(engine="xla", tp=4)


@by_night
def test_every_stage_is_that_of_one_rank_on_numpy(four, few_kv, traced):
    seen, true = traced(four), traced(few_kv())
    assert seen.tensors.keys() == true.tensors.keys()
    for (round_, stage), value in true.tensors.items():
        np.testing.assert_allclose(
            seen.tensors[round_, stage], value, rtol=1e-3, atol=1e-4, err_msg=f"{stage} {round_}"
        )
    assert seen.shards[0, "target.layers.0.k"][0] == "G/2" and len(seen.shards[2, "verify.logits"][1]) == 4


@by_night
def test_it_decodes_as_one_rank_does_and_compiles_each_shape_once(four, few_kv):
    first = four.generate(PROMPT, 12)
    used = len(four._engine.programs.used)
    assert first == few_kv().generate(PROMPT, 12) == four.generate(PROMPT, 12)
    assert len(four._engine.programs.used) == used
    assert four.describe().name == "xla, tp 4"


def test_every_rank_lies_on_a_device_of_its_own(four):
    for weight in (four.target.layers[0]["q"], four.target.caches[0][0], four.target.outer["embed"]):
        assert [part.held.devices() for part in weight.parts] == [{one} for one in jax.devices()[:4]]


def test_a_program_without_its_all_reduce_is_noticed(few_kv, monkeypatch):
    monkeypatch.setattr(linear, "all_reduce", lambda x: x)
    with pytest.raises(RuntimeError, match="attn_out: rank 1 differs from rank 0"):
        few_kv(engine="xla", tp=2).prefill(PROMPT, 12, lambda stage, value: value)


def test_collectives_inside_a_program_and_outside():
    machine = mesh.engine(Sharding(2, {"target": 2, "drafter": 2}))

    @program
    def meet(x):
        return all_reduce(x), all_gather(x, -1)

    x = machine.shard([np.array([[1.0, 2.0]], np.float32), np.array([[10.0, 20.0]], np.float32)])
    for total, gathered in (meet(x), (all_reduce(x), all_gather(x, -1))):
        assert [one.tolist() for one in machine.hosts(total)] == 2 * [[[11, 22]]]
        assert [one.tolist() for one in machine.hosts(gathered)] == 2 * [[[1, 2, 10, 20]]]


def test_ranks_meet_within_their_group_and_in_its_order():
    machine = mesh.engine(Sharding(4, {"target": 4, "drafter": 4}))

    @program
    def meet(x):
        return all_reduce(x, ((0, 1), (2, 3))), all_gather(x, -1, ((3, 2, 1, 0),))

    x = machine.shard([np.full((1, 1), 10.0**rank, np.float32) for rank in range(4)])
    outside = all_reduce(x, ((0, 1), (2, 3))), all_gather(x, -1, ((3, 2, 1, 0),))
    for total, gathered in (meet(x), outside):
        assert [one.item() for one in machine.hosts(total)] == [11, 11, 1100, 1100]
        assert machine.hosts(gathered)[2].tolist() == [[1000, 100, 10, 1]]


def test_too_few_devices_are_refused(few_kv, monkeypatch):
    one = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda: one)
    with pytest.raises(UsageError, match="4 ranks need as many devices, and XLA has 1; XLA_FLAGS="):
        few_kv(engine="xla", tp=4)
