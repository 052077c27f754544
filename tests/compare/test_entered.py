"""Which token entered a row: rows of one token are embedded alike, rows of two are not."""

from __future__ import annotations

import numpy as np
import pytest

from parity.compare.entered import entered_tokens
from parity.compare.rows import stage_rows


def golden_rows(golden, stage: str):
    return stage_rows(golden, golden, golden.declared[stage], device="float32", mode="chained")


def test_a_targets_rows_are_the_embeddings_of_their_tokens_prefill_and_drafts_alike(small_golden):
    rows = golden_rows(small_golden, "target.embed")
    tokens = entered_tokens(small_golden, rows)
    assert (tokens >= 0).all() and (rows.round > 0).sum() > 10
    known = {token: rows.golden[at] for at, token in enumerate(tokens.tolist())}
    assert all(np.array_equal(rows.golden[at], known[token]) for at, token in enumerate(tokens.tolist()))
    assert len({row.tobytes() for row in known.values()}) == len(known)


@pytest.mark.parametrize("stage", ["drafter.layers.0.attn_out", "drafter.input_ids"])
def test_a_drafters_rows_are_those_of_its_input_ids(small_golden, stage):
    rows, ids = golden_rows(small_golden, stage), golden_rows(small_golden, "drafter.input_ids")
    assert np.array_equal(entered_tokens(small_golden, rows), ids.golden)


def test_a_caches_rows_are_of_the_sequence(small_golden):
    rows = golden_rows(small_golden, "kv.target.0.k")
    tokens = entered_tokens(small_golden, rows)
    for prompt, case in enumerate(small_golden.manifest.case.prompts):
        sequence = np.array([*case.ids, *case.generated.emitted])
        own = rows.prompt == prompt
        assert np.array_equal(tokens[own], sequence[rows.position[own]])
