"""Tensor-parallel dumps: rank shards merge by their named axis, sum, or are checked to be replicas."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from parity.cli.diff import compare_dumps
from parity.cli.run import make_run
from parity.errors import UsageError
from parity.golden.store import Dump, DumpWriter

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
def whole(small_golden, tmp_path_factory) -> Dump:
    return make_run(small_golden, "numpy", "local", "float32", out=tmp_path_factory.mktemp("tp") / "whole")


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


def test_a_sharded_run_compares_like_a_whole_one(sharded, small_golden):
    assert compare_dumps(small_golden, sharded()).verdict == "pass"


def test_replicas_that_differ_are_a_failure(sharded, small_golden):
    def spoil(stage, value, rank):
        return value + (rank == 1 and stage == "target.embed")

    report = compare_dumps(small_golden, sharded(spoil))
    assert report.exit_code == 1
    assert {(found.kind, found.stage) for found in report.findings} == {("replicas", "target.embed")}


def test_swapped_ranks_are_a_failure(sharded, small_golden):
    def swap(stage, value, rank):
        return np.roll(value, 1) if stage == HEADS and rank else value

    report = compare_dumps(small_golden, sharded(swap))
    assert report.exit_code == 1 and report.first.stage == HEADS


@pytest.mark.parametrize("sharding", [{HEADS: "Z"}, {HEADS: "S"}])
def test_a_sharding_that_does_not_fit_is_refused_or_fails(sharding, sharded, small_golden):
    try:
        assert compare_dumps(small_golden, sharded(sharding={PARTIAL: "sum"} | sharding)).exit_code == 1
    except UsageError as error:
        assert HEADS in str(error)


def test_bfloat16_partial_sums_are_added_in_float32():
    from parity.golden.manifest import TensorRow
    from parity.golden.ranks import merge

    row = TensorRow(
        key="p000/r0000/x", variant="bfloat16", axes=("S",), dtype="bfloat16", shape=(1,), start=0, shard="", sha256="",
        sharding="sum",
    )  # fmt: skip
    ones = np.ones(1, ml_dtypes.bfloat16)
    assert merge([row] * 300, [ones] * 300).astype(np.float32)[0] == 300
