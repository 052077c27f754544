"""Collectives of a traced program without a tracer: read from the HLO, refused, counted, and run as replicas by XLA."""

from types import SimpleNamespace

import numpy as np
import pytest

from parity.device.engines import numpy_engine, ranks
from parity.device.engines.traced import collectives
from parity.device.engines.traced.collectives import Collective
from parity.device.kernels.collectives import all_gather, all_reduce, meeting
from parity.device.sharding import Sharding
from parity.errors import UsageError

WHOLE, PAIRS = ((0, 1, 2, 3),), ((0, 1), (2, 3))


def module(*instructions):
    """What of an HLO module's proto is read."""
    made = [
        SimpleNamespace(opcode=opcode, replica_groups=[SimpleNamespace(replica_ids=group) for group in groups])
        for opcode, groups in instructions
    ]
    return SimpleNamespace(
        computations=[SimpleNamespace(instructions=made[:1]), SimpleNamespace(instructions=made[1:])]
    )


def test_they_are_read_from_every_computation_with_their_groups():
    found = collectives.of(module(("all-reduce", WHOLE), ("add", ()), ("all-gather", PAIRS)))
    assert found == [Collective("all-reduce", WHOLE), Collective("all-gather", PAIRS)]


def test_they_are_counted_in_words_by_groups():
    found = [Collective("all-gather", WHOLE), *3 * [Collective("all-reduce", WHOLE)], Collective("all-reduce", PAIRS)]
    assert collectives.told(found) == (
        "1 all-reduce over [[0, 1], [2, 3]]; 3 all-reduce, 1 all-gather over [[0, 1, 2, 3]]"
    )
    assert collectives.told([]) == "none"


@pytest.mark.parametrize("groups", [WHOLE, PAIRS, ((3, 2, 1, 0),)])
def test_groups_with_every_rank_once_are_taken(groups):
    collectives.check([Collective("all-reduce", groups)], 4)


@pytest.mark.parametrize(
    "groups",
    [((0, 1, 2),), ((0, 1), (2, 2)), ((0, 1, 2, 4),), ((0, 1, 2), (3,)), ()],
    ids=["one left out", "one twice", "one unknown", "of two sizes", "none"],
)
def test_groups_at_which_a_rank_would_wait_for_ever_are_refused(groups):
    with pytest.raises(UsageError, match=r"all-gather over .*: not every one of 4 ranks once"):
        collectives.check([Collective("all-gather", groups)], 4)


def test_arrays_of_a_foreign_tracer_meet_as_whoever_traces_says():
    x, says = (
        np.ones((1, 2)),
        SimpleNamespace(all_reduce=lambda x, groups: groups, all_gather=lambda x, axis, groups: axis),
    )
    with meeting(says):
        assert all_reduce(x, PAIRS) == PAIRS and all_gather(x, -1) == -1
    assert all_reduce(x) is x and all_gather(x, -1) is x


def test_ranks_meet_within_their_group_and_in_its_order():
    machine = ranks.engine(numpy_engine, Sharding(4, {"target": 4, "drafter": 4}))
    x = machine.shard([np.full((1, 1), 10.0**rank, np.float32) for rank in range(4)])
    assert [one.item() for one in machine.hosts(all_reduce(x, PAIRS))] == [11, 11, 1100, 1100]
    assert machine.hosts(all_gather(x, -1, ((3, 2, 1, 0),)))[1].tolist() == [[1000, 100, 10, 1]]


MODULE = """module @f {
  func.func @main(%x: tensor<1x2xf32>) -> (tensor<1x2xf32>, tensor<1x8xf32>) {
    %s = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
    }) : (tensor<1x2xf32>) -> tensor<1x2xf32>
    %g = "stablehlo.all_gather"(%x) <{
      all_gather_dim = 1 : i64, replica_groups = dense<[[3, 1, 2, 0]]> : tensor<1x4xi64>
    }> : (tensor<1x2xf32>) -> tensor<1x8xf32>
    return %s, %g : tensor<1x2xf32>, tensor<1x8xf32>
  }
}
"""


ALONE = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"


@pytest.fixture
def lowering(monkeypatch):
    """The lowering, of which every module is the one above."""
    pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")
    from parity.device.engines.traced import lowering

    monkeypatch.setattr(lowering, "stablehlo", lambda module: MODULE)
    return lowering


HLO = SimpleNamespace(SerializeToString=lambda deterministic: MODULE.encode())
"""What is asked of a traced module's proto before it is compiled."""


def test_replica_groups_mean_ranks_and_their_order_is_a_gathers(lowering):
    from parity.device.engines.traced.mesh import Replicas

    four = Replicas(4)
    x = four.put([np.array([[rank, 10 * rank]], np.float32) for rank in range(4)])
    summed, gathered = map(four.get, four.compiled(HLO)([x]))
    assert [one.tolist() for one in summed] == [[[1, 10]], [[1, 10]], [[5, 50]], [[5, 50]]]
    assert [one.tolist() for one in gathered] == 4 * [[[3, 30, 1, 10, 2, 20, 0, 0]]]


def test_equal_hlo_is_compiled_once_and_the_oldest_is_dropped(lowering, monkeypatch):
    monkeypatch.setattr(lowering, "_COMPILED", {})
    first = lowering.executable(HLO, lowering.devices(4))
    assert lowering.executable(HLO, lowering.devices(4)) is first
    monkeypatch.setattr(lowering, "KEPT", 1)
    monkeypatch.setattr(lowering, "stablehlo", lambda module: ALONE)
    assert lowering.executable(HLO, lowering.devices(1)) is not first, "another number of ranks is another program"
    assert len(lowering._COMPILED) == 1


def test_too_few_devices_are_refused(lowering):
    with pytest.raises(UsageError, match=r"64 ranks need as many devices, and XLA has \d+; XLA_FLAGS="):
        lowering.devices(64)
