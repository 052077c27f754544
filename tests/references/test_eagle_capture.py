"""The official EAGLE-3 as a producer: what it refuses, and where a checkout is named, live against `eagle3`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from parity.errors import UsageError
from parity.golden.store import Dump
from parity.references.drafter_config import Eagle3Config
from parity.references.dump import Request, dump_golden
from parity.references.eagle_capture import _supported, official
from tests.references.chain_cases import RAW

CHECKOUT = os.environ.get("PARITY_EAGLE_CHECKOUT")


def test_a_folder_that_is_no_checkout_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"eagle/model/cnets\.py"):
        official(tmp_path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"head_dim": 16}, "head_dim"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4]}}, "taps"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            "rope_type",
        ),
    ],
)
def test_what_the_official_code_does_not_have_is_refused(change, what):
    config = Eagle3Config.from_dict(RAW | {"head_dim": 8} | change)
    with pytest.raises(UsageError, match=what):
        _supported(config, Path("drafter"))


def test_the_commands_options_go_together(parity, tmp_path):
    ended = parity("dump-golden", "--reference", "eagle", "--out", tmp_path / "golden")
    assert ended.code == 2 and "--checkout" in ended.err
    ended = parity("dump-golden", "--checkout", tmp_path, "--out", tmp_path / "golden")
    assert ended.code == 2 and "--checkout is no option of --reference own" in ended.err


def test_an_official_golden_is_not_dumped_again_by_the_references(parity, tiny):
    ended = parity("verify-golden", tiny.parent / "eagle")
    assert ended.code == 2 and "--reference eagle" in ended.err


@pytest.mark.skipif(not CHECKOUT, reason="$PARITY_EAGLE_CHECKOUT names no checkout of SafeAILab/EAGLE")
def test_both_references_agree_at_every_stage_in_float32_chained_and_local(tiny, tmp_path):
    from parity.references import eagle_capture

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"id": "a", "ids": [1264, 300, 400, 500, 600, 700, 301, 401]}))
    torch.set_num_threads(1)
    case = dict(target=tiny / "target", drafter=tiny / "eagle3", prompts=prompts, k=3, max_new_tokens=6, stages=())
    own = Dump(dump_golden(Request(out=tmp_path / "own", **case)))
    asked = eagle_capture.Request(out=tmp_path / "theirs", checkout=Path(CHECKOUT), **case)
    theirs = Dump(eagle_capture.dump_golden(asked))
    assert own.rows.keys() == theirs.rows.keys()
    for variant, prompt, round_, stage in own.rows:
        if variant == "float32":
            a, b = (dump.contents(variant, prompt, round_, stage) for dump in (own, theirs))
            assert a.shape == b.shape and (a.dtype.kind != "i" or np.array_equal(a, b)), stage
            assert np.linalg.norm(a.astype(float) - b) <= 1e-4 * np.linalg.norm(b) + 1e-12, stage
