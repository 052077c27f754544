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
CHAIN = RECORDED.with_name("eagle3-k3-b2")
MACHINES = 1e-5
"""Relative; the same vLLM on another processor sums in another order: float32, a thousand terms, 2^-24 * 32 = 2e-6."""

pytestmark = pytest.mark.skipif("PARITY_VLLM_PYTHON" not in os.environ, reason="`make vllm` runs this")


@pytest.fixture(scope="module")
def here():
    """Checkpoints are named relative to the repository, as in the recordings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


def dumped(recorded: Path, folder: Path) -> Path:
    """vLLM on the recording's case; the P-EAGLE one with a floor, for the device to be compared with."""
    from parity.producers import dump_golden

    manifest = Dump(recorded).manifest
    pair, case = (Path(manifest.model.target.path), Path(manifest.model.drafter.path)), manifest.case
    assert all(path.is_dir() for path in pair)
    how = {"reference": "vllm", "batch": len(case.prompts), "python": Path(os.environ["PARITY_VLLM_PYTHON"])}
    how["floor"] = recorded == RECORDED
    prompts = write_prompts(Dump(recorded), folder / "prompts.jsonl")
    return dump_golden(*pair, prompts, case.k, case.max_new_tokens, out=folder / "golden", **how).folder


@pytest.fixture(scope="module")
def live(here, tmp_path_factory) -> Path:
    return dumped(RECORDED, tmp_path_factory.mktemp("live"))


def differing(recorded: Dump, now: Dump) -> list[tuple]:
    """Places where vLLM computes today what it did not when it was recorded."""
    assert [one.generation for one in now.manifest.case.prompts] == [
        one.generation for one in recorded.manifest.case.prompts
    ]
    found = []
    for place in recorded.rows:
        mine, its = recorded.stored(*place), now.stored(*place)
        if mine.dtype.kind == "i":
            found += [] if np.array_equal(mine, its) else [place]
        elif place[0] == "float32":
            found += [] if np.linalg.norm(mine - its) <= MACHINES * np.linalg.norm(mine) else [place]
    return found


def test_vllm_computes_what_was_recorded(live):
    assert differing(Dump(RECORDED), Dump(live)) == []


def test_vllm_computes_the_chain_that_was_recorded(here, tmp_path):
    assert differing(Dump(CHAIN), Dump(dumped(CHAIN, tmp_path))) == []


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
