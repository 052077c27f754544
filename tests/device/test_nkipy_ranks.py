"""Tensor parallelism in the traced program: NKIPy's own collectives in the HLO, run over a mesh of XLA:CPU devices."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("nkipy", reason="NKIPy is not installed: docs/neuron.md has the command")
pytest.importorskip("jax", reason="jax is not installed: pip install 'parity-harness[nkipy]'")

from parity import api
from parity.api import compare_dumps
from parity.batching import performed
from parity.builders import builder
from parity.device.engines import nkipy_engine
from parity.device.engines.traced.collectives import told
from parity.device.faults import CATALOGUE
from parity.device.kernels.collectives import all_gather, all_reduce
from parity.device.kernels.head import greedy
from parity.device.kernels.program import program
from parity.device.sharding import Sharding
from parity.drive import run_device
from parity.golden.store import Dump
from parity.guard import unguarded
from parity.rounds import free_rounds
from parity.run_request import RunRequest
from tests.sample import by_night, cover

PROMPT = np.arange(1, 25)
HELD = {
    "target_layer": "2 all-reduce over [[0, 1, 2, 3]]",
    "midlayer": "2 all-reduce over [[0, 1, 2, 3]]",
    "plain_layer": "2 all-reduce over [[0, 1, 2, 3]]",
    "choose": "2 all-gather over [[0, 1, 2, 3]]",
}
"""Of each whole program: a reduction behind o and one behind down, a gather of the best logits and one of their ids."""


@pytest.fixture(scope="module")
def four(few_kv):
    """Four ranks, two kv heads, bfloat16."""
    return few_kv(engine="nkipy", tp=4, precision="bfloat16")


def machine(ranks):
    return nkipy_engine.engine().spread(Sharding(ranks, {"target": ranks, "drafter": ranks}))


def caches_of(model):
    caches = [one for pair in model.caches for one in pair]
    return [part.astype(np.float32) for one in caches for part in model.engine.hosts(one)]


def test_whole_programs_hold_nkipys_collectives(four, few_kv):
    generation = four.generate(PROMPT, 12)
    found = {one.kernel.__name__: told(one.collectives) for one in four._engine.programs if one.collectives}
    print(*(f"{name}: {said}" for name, said in found.items()), sep="\n")
    assert found == HELD
    whole = Counter(one for program in four._engine.programs for one in program.collectives)
    assert four.describe().notes["collectives"] == told(whole.elements())
    assert generation == few_kv(precision="bfloat16").generate(PROMPT, 12) == four.generate(PROMPT, 12)


def test_the_collectives_are_in_what_the_compiler_gets(four):
    four.prefill(PROMPT, 12)
    layer = next(one for one in four._engine.programs if one.kernel.__name__ == "target_layer")
    lines = [
        (one.opcode, [list(group.replica_ids) for group in one.replica_groups], list(one.shape.dimensions))
        for computation in layer.code.to_proto().computations
        for one in computation.instructions
        if one.opcode.startswith("all-")
    ]
    assert lines == 2 * [("all-reduce", [[0, 1, 2, 3]], [1, 32, 64])]


def test_every_rank_lies_on_a_device_of_its_own(four):
    for weight in (four.target.layers[0]["q"], four.target.caches[0][0], four.target.outer["embed"]):
        devices = {shard.device for shard in weight.buffer.addressable_shards}
        assert len(devices) == 4
    assert four.target.layers[0]["q"].shape == (64, 40), "one rank's columns"
    with pytest.raises(TypeError, match="through the engine"):
        np.asarray(four.target.outer["embed"])


def test_whoever_waits_for_ranks_waits_for_every_cache(four, monkeypatch):
    four.prefill(PROMPT, 12)
    machine, waited = four._engine.machine, []
    monkeypatch.setattr(machine, "get", lambda buffer, get=machine.get: (waited.append(buffer), get(buffer))[1])
    four.synchronize()
    held = [one.buffer for model in (four.target, four.drafter) for pair in model.caches for one in pair]
    assert len(waited) == len(held) and all(one is other for one, other in zip(waited, held, strict=True))
    assert all(one.is_ready() for one in held)


def test_whole_programs_and_their_pieces_give_the_same_bits_on_every_rank(few_kv):
    whole, pieces = (few_kv(engine="nkipy", tp=2, precision="bfloat16") for _ in range(2))
    whole.prefill(PROMPT, 12), pieces.prefill(PROMPT, 12, lambda stage, value: value)
    for left, right in zip(caches_of(whole.target), caches_of(pieces.target), strict=True):
        np.testing.assert_array_equal(left, right)


def test_collectives_inside_a_program_and_outside():
    two = machine(2)

    @program
    def meet(x):
        return all_reduce(x), all_gather(x, -1)

    x = two.shard([np.array([[1.0, 2.0]], np.float32), np.array([[10.0, 20.0]], np.float32)])
    for total, gathered in (meet(x), (all_reduce(x), all_gather(x, -1))):
        assert [one.tolist() for one in two.hosts(total)] == 2 * [[[11, 22]]]
        assert [one.tolist() for one in two.hosts(gathered)] == 2 * [[[1, 2, 10, 20]]]
    assert two.notes()["collectives"] == "2 all-reduce, 2 all-gather over [[0, 1]]"


def test_what_one_program_gathers_another_reads_row_by_row():
    """XLA left to choose gathers along the last axis into another layout, which nothing tells the next program."""
    four = machine(4)
    logits = np.random.default_rng(0).integers(0, 50, (1, 6, 40)).astype(np.float32)
    x = four.shard(np.split(logits, 4, axis=-1))
    whole = greedy(x)
    four.interpret()
    for ids in (whole, greedy(x)):
        assert [one.tolist() for one in four.hosts(ids)] == 4 * [np.argmax(logits, axis=-1).tolist()]


def test_ranks_are_indexed_written_and_moved_each_for_itself():
    two = machine(2)
    x = two.shard([np.arange(4, dtype=np.float32).reshape(1, 4) * sign for sign in (1, -1)])
    x[:, 1:3] = two.array(np.array([[7.0, 8.0]], np.float32))
    for moved in (x[:, 2:].reshape(2, 1), x.transpose(1, 0)[2:]):
        assert [one.ravel().tolist() for one in two.hosts(moved)] == [[8, 3], [8, -3]]
    assert two.host(x).tolist() == [[0, 7, 8, 3]]


def test_a_program_without_its_all_reduce_is_noticed(few_kv, monkeypatch):
    monkeypatch.setattr("parity.device.engines.traced.collectives.Traced.all_reduce", lambda self, x, groups: x)
    with pytest.raises(RuntimeError, match="attn_out: rank 1 differs from rank 0"):
        few_kv(engine="nkipy", tp=2).prefill(PROMPT, 12, lambda stage, value: value)


@pytest.mark.parametrize(
    ("tp", "mode", "precision"),
    cover([(tp, mode, kind) for tp in (4, 2) for mode in ("chained", "local") for kind in ("bfloat16", "float32")]),
)
def test_the_comparison_is_green(tp, mode, precision, shallow_golden, tmp_path):
    run = api.run_device(shallow_golden, f"nkipy,tp={tp}", mode, precision, out=tmp_path / "run")
    report = compare_dumps(shallow_golden, run)
    assert report.verdict == "pass", report.first
    assert f"all-gather over {[[*range(tp)]]}" in run.manifest.producer.notes["collectives"]


@pytest.mark.parametrize("name", ["tp-attn-reduced-in-pairs", "tp-gather-reversed"])
def test_a_fault_of_a_collective_is_traced_into_the_hlo_and_killed(name, shallow_golden, tmp_path):
    fault = CATALOGUE[name]
    device = unguarded(builder("nkipy", shallow_golden)(precision=fault.precision, tp=4))
    fault.plant(device)
    device.generate(shallow_golden.manifest.case.prompts[0].ids, 2)
    wrong = {"tp-attn-reduced-in-pairs": "[[0, 1], [2, 3]]", "tp-gather-reversed": "[[3, 2, 1, 0]]"}[name]
    whole = [one for one in device._engine.programs if wrong in told(one.collectives)]
    assert {one.kernel.__name__ for one in whole} <= {"target_layer", "choose"} and whole
    out = run_device(RunRequest(device=device, golden=shallow_golden, mode="local", stages=(), out=tmp_path / "run"))
    report = compare_dumps(shallow_golden, Dump(out))
    assert report.verdict == "fail" and report.first.stage == fault.stage


@by_night
@pytest.mark.parametrize("company", [dict(batch=2), dict(lanes=2)], ids=str)
def test_ranks_of_a_batch_emit_what_one_emits(company, few_kv):
    found, plain = (few_kv(precision="bfloat16", **some) for some in (dict(engine="nkipy", tp=2) | company, company))
    script = [(number, free_rounds(found, PROMPT[number:], 6)) for number in range(2)]
    told = [(number, free_rounds(plain, PROMPT[number:], 6)) for number in range(2)]
    assert sorted(performed(found, script)) == sorted(performed(plain, told))
    assert "all-gather over [[0, 1]]" in found.describe().notes["collectives"]
