"""Tensor-parallel dumps: rank shards merge by their named axis, sum, or are checked to be replicas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.api import compare_dumps, run_device
from parity.errors import UsageError
from parity.golden.manifest import TensorRow
from parity.golden.ranks import merge, merged_row, replicas_differ
from parity.golden.ranks import split as shares
from parity.golden.store import Dump
from parity.golden.views import PromptSlice
from parity.golden.writer import DumpWriter

RANKS = 2
HEADS = "target.layers.1.q"
PARTIAL = "target.layers.1.attn_out"


def split(stage: str, value: np.ndarray, rank: int) -> np.ndarray:
    """What one of two ranks holds of a stage: its heads, its partial sum, or the whole."""
    if stage == HEADS:
        return np.split(value, RANKS, axis=1)[rank]
    if stage == PARTIAL:
        half = (value.astype(np.float32) * 0.25).astype(value.dtype)
        return half if rank else (value.astype(np.float32) - half.astype(np.float32)).astype(np.float32)
    return value


@pytest.fixture(scope="module")
def whole(shallow_golden, tmp_path_factory) -> Dump:
    return run_device(shallow_golden, "numpy", "local", "float32", out=tmp_path_factory.mktemp("tp") / "whole")


@pytest.fixture(scope="module")
def one_prompt(shallow_golden) -> PromptSlice:
    """The first prompt and two rounds of the small golden."""
    return PromptSlice(shallow_golden, 0, 2)


@pytest.fixture
def sharded(whole, tmp_path):
    """The same run as two ranks would dump it; `change` may spoil a rank's tensor, `sharding` its declaration."""

    def make(change=lambda stage, value, rank: value, sharding=None) -> Dump:
        case, manifest = whole.manifest.case, whole.manifest
        sharding = {HEADS: "N", PARTIAL: "sum"} if sharding is None else sharding
        with DumpWriter(tmp_path / "tp") as writer:
            for rank in range(RANKS):
                for prompt in range(len(case.prompts)):
                    places = [place[2:] for place in whole.rows if place[1] == prompt]
                    tensors = {}
                    for round_, stage in places:
                        value = np.array(whole.contents("float32", prompt, round_, stage))
                        tensors[round_, stage] = change(stage, split(stage, value, rank), rank)
                    writer.add(prompt, "float32", whole.declared.values(), tensors, rank, sharding)
            writer.finish(
                kind="run",
                stages=manifest.stages,
                created=manifest.created,
                producer=manifest.producer,
                model=manifest.model,
                case=case,
            )
        return Dump(tmp_path / "tp")

    return make


def test_rank_shards_merge_to_the_whole_tensor(sharded, whole):
    merged = sharded()
    assert np.array_equal(merged.stored("float32", 0, 1, HEADS), whole.stored("float32", 0, 1, HEADS))
    np.testing.assert_allclose(
        merged.stored("float32", 0, 1, PARTIAL), whole.stored("float32", 0, 1, PARTIAL), rtol=1e-6, atol=1e-7
    )


def test_a_sharded_run_compares_like_a_whole_one(sharded, shallow_golden):
    assert compare_dumps(shallow_golden, sharded()).verdict == "pass"


def test_replicas_that_differ_are_a_failure(sharded, shallow_golden):
    def spoil(stage, value, rank):
        return value + (rank == 1 and stage == "target.embed")

    report = compare_dumps(shallow_golden, sharded(spoil))
    assert report.exit_code == 1
    assert {(found.kind, found.stage) for found in report.findings} == {("replicas", "target.embed")}


def test_swapped_ranks_are_a_failure(sharded, shallow_golden):
    def swap(stage, value, rank):
        return np.roll(value, 1) if stage == HEADS and rank else value

    report = compare_dumps(shallow_golden, sharded(swap))
    assert report.exit_code == 1 and report.first.stage == HEADS


@pytest.mark.parametrize("sharding", [{HEADS: "Z"}, {HEADS: "S"}])
def test_a_sharding_that_does_not_fit_is_refused_or_fails(sharding, sharded, shallow_golden):
    try:
        assert compare_dumps(shallow_golden, sharded(sharding={PARTIAL: "sum"} | sharding)).exit_code == 1
    except UsageError as error:
        assert HEADS in str(error)


def test_neighbours_may_hold_the_same_shard():
    """Four ranks, two kv heads: `G/2`."""
    rows = [kv_row(rank, digest) for rank, digest in enumerate("aabb")]
    shards = [np.full((3, 1, 2), rank // 2) for rank in range(4)]
    assert merged_row(rows).shape == (3, 2, 2) and not replicas_differ(rows)
    merged = merge(rows, shards)
    assert merged[0, :, 0].tolist() == [0, 1]
    for part, shard in zip(shares("k", merged, 4, "G/2", rows[0].axes), shards, strict=True):
        assert np.array_equal(part, shard)


def test_a_sum_falls_to_the_first_rank_and_merges_to_itself():
    whole = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    parts = shares("x", whole, 3, "sum", ("S", "D"))
    assert [part.sum() for part in parts] == [15, 0, 0]
    assert np.array_equal(sum(parts), whole)


def test_neighbours_that_should_hold_the_same_and_do_not():
    assert replicas_differ([kv_row(rank, digest) for rank, digest in enumerate("aabc")])
    assert replicas_differ([kv_row(rank, digest) for rank, digest in enumerate("abab")])


@pytest.mark.parametrize(("sharding", "ranks"), [("G/3", 4), ("G/0", 4), ("G/x", 4), ("/2", 4), ("Z/2", 4)])
def test_a_number_of_copies_that_does_not_fit_is_refused(sharding, ranks):
    with pytest.raises(UsageError, match="k"):
        merged_row([kv_row(rank, "a", sharding) for rank in range(ranks)])


def kv_row(rank, digest, sharding="G/2"):
    return TensorRow(
        key="p000/r0000/target.layers.0.k", variant="float32", axes=("S", "G", "D"), dtype="float32", shape=(3, 1, 2),
        start=0, shard="", sha256=digest, rank=rank, sharding=sharding,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["local", "chained"])
def test_a_device_of_two_ranks_is_recorded_rank_by_rank_and_judged_whole(mode, one_prompt, tmp_path):
    run = run_device(one_prompt, "numpy,tp=2", mode, out=tmp_path / "run")
    parts = {
        stage: run.parts["bfloat16", 0, 2, stage]
        for stage in one_prompt.declared
        if ("bfloat16", 0, 2, stage) in run.parts
    }
    assert {row.sharding for row in parts[HEADS]} == {"N"} and [row.rank for row in parts[HEADS]] == [0, 1]
    assert {row.sharding for row in parts["kv.target.1.v"]} == {"G"} and len(parts["verify.logits"]) == 2
    assert {row.sharding for row in parts[PARTIAL]} == {"replicated"} and len(parts["accept.length"]) == 1
    assert compare_dumps(one_prompt, run).verdict == "pass"


def test_a_rank_that_is_not_reduced_is_found_by_its_replica(one_prompt, tmp_path):
    run = run_device(one_prompt, "parity.device.faults:tp_attn_not_reduced", "local", out=tmp_path / "run")
    report = compare_dumps(one_prompt, run)
    assert report.exit_code == 1 and report.first.stage == "target.layers.0.attn_out"
    assert {found.kind for found in report.findings} == {"replicas"}


def test_one_ranks_cache_that_changed_earlier_is_stored_whole(one_prompt, tmp_path):
    """The ranks' rows differ in where they change; what is stored starts where the first of them does."""
    run = run_device(one_prompt, "parity.device.faults:tp_rollback_one_rank", "chained", out=tmp_path / "run")
    report = compare_dumps(one_prompt, run)
    assert report.exit_code == 1 and report.first.stage == "kv.drafter.0.k"


def test_bfloat16_partial_sums_are_added_in_float32():
    row = TensorRow(
        key="p000/r0000/x", variant="bfloat16", axes=("S",), dtype="bfloat16", shape=(1,), start=0, shard="", sha256="",
        sharding="sum",
    )  # fmt: skip
    ones = np.ones(1, ml_dtypes.bfloat16)
    assert merge([row] * 300, [ones] * 300).astype(np.float32)[0] == 300
