"""vLLM's engine as the device, where `make vllm` has set it up."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from docs.ports import vllm_run
from parity.api import compare_dumps, open_golden
from parity.golden.store import Dump
from parity.oracles import ReferenceRerun
from tests import vllm_processor

pytestmark = pytest.mark.skipif("PARITY_VLLM_PYTHON" not in os.environ, reason="`make vllm` runs this")


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=vllm_processor.rounds)])
def test_vllm_as_it_is_passes(precision, small_golden, tmp_path):
    golden = open_golden(small_golden.folder)
    report = compare_dumps(golden, Dump(vllm_run.run(golden, tmp_path / "run", precision)), rerun=ReferenceRerun())
    assert report.verdict == "pass" and "target.layers.3.attn_out" in report.not_shown


def test_taps_one_layer_late_are_seen_at_the_taps(small_golden, tiny, tmp_path):
    golden, late = open_golden(small_golden.folder), shutil.copytree(tiny / "drafter", tmp_path / "late")
    config = json.loads((late / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [3, 5, 6]
    (late / "config.json").write_text(json.dumps(config))
    report = compare_dumps(golden, Dump(vllm_run.run(golden, tmp_path / "run", drafter=late)))
    assert report.verdict == "fail" and report.first.stage == "drafter.taps"
    assert report.parted  # nothing is forced: behind a draft of its own the sequence is vLLM's
