"""vLLM itself, where `make vllm` has set it up: what it computes today is what was recorded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from parity.golden.store import Dump
from parity.golden.verify import write_prompts

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "fixtures" / "vllm" / "p-eagle-k3-b2"
MACHINES = 1e-5
"""Relative; the same vLLM on another processor sums in another order: float32 sums of a thousand terms, 2^-24 * 32 = 2e-6."""

pytestmark = pytest.mark.skipif("PARITY_VLLM_PYTHON" not in os.environ, reason="`make vllm` runs this")


@pytest.fixture(scope="module")
def here():
    """Checkpoints are named relative to the repository, as in the recordings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def live(here, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    case = Dump(RECORDED).manifest.case
    from parity.cli.golden import make_golden, tiny

    prompts = write_prompts(Dump(RECORDED), folder / "prompts.jsonl")
    pair = Path("fixtures/tiny/target"), Path("fixtures/tiny/drafter")
    assert all(path.is_dir() for path in pair) and tiny("target").is_dir()
    python = Path(os.environ["PARITY_VLLM_PYTHON"])
    how = {"reference": "vllm", "batch": 2, "python": python}
    return make_golden(*pair, prompts, case.k, case.max_new_tokens, out=folder / "golden", **how).folder


def test_vllm_computes_what_was_recorded(live):
    recorded, now = Dump(RECORDED), Dump(live)
    assert [one.generation for one in now.manifest.case.prompts] == [one.generation for one in recorded.manifest.case.prompts]
    for place in recorded.rows:
        mine, its = recorded.stored(*place), now.stored(*place)
        if mine.dtype.kind == "i":
            assert np.array_equal(mine, its), place
        elif place[0] == "float32":
            assert np.linalg.norm(mine - its) <= MACHINES * np.linalg.norm(mine), place


def test_it_shows_every_stage_but_the_caches(live):
    golden = Dump(live)
    assert {name for name in golden.declared if not name.startswith("kv.")} == set(golden.manifest.stages)
    assert golden.variants() == {"float32", "bfloat16"}


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_the_device_is_green(precision, live, parity, here):
    found = parity("diff", "--golden", live, "--precision", precision)
    assert found.code == 0 and "verdict: pass" in found.last, found.out


def test_it_confirms_our_references(live, remake_small_golden, parity, here, tmp_path):
    case = Dump(live).manifest.case
    prompts = write_prompts(Dump(live), tmp_path / "prompts.jsonl")
    ours = remake_small_golden(tmp_path / "ours", prompts=prompts, k=case.k, max_new_tokens=case.max_new_tokens)
    found = parity("corroborate", ours.folder, live)
    assert found.code == 0 and "references verdict: corroborated" in found.last, found.out


def test_verify_golden_runs_vllm_again(live, parity, here, tmp_path):
    copy = shutil.copytree(live, tmp_path / "copy")
    found = parity("verify-golden", copy)
    assert found.code == 0 and "alike, byte for byte" in found.last, found.out
