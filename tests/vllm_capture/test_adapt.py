"""What vLLM reads otherwise is refused or changed and said; a missing or unknown vLLM is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.errors import UsageError
from parity.references.vllm_capture.adapt import adapted, check_target, parallel


@pytest.fixture
def drafter(tiny, tmp_path) -> Path:
    return Path(shutil.copytree(tiny / "drafter", tmp_path / "own"))


def edit(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_tiny_drafter_is_read_as_it_is(tiny, drafter, tmp_path):
    assert adapted(drafter, tiny / "target", tmp_path) == (drafter, "none")


def test_a_drafter_without_a_placeholder_is_a_chain(tiny, tmp_path):
    assert parallel(tiny / "drafter") and not parallel(tiny / "eagle3")
    assert adapted(tiny / "eagle3", tiny / "target", tmp_path) == (tiny / "eagle3", "none")


def test_another_placeholder_key_is_left_out(tiny, drafter, tmp_path):
    edit(drafter, pard_token=3, mask_token_id=4)
    copy, said = adapted(drafter, tiny / "target", tmp_path)
    assert said.startswith("config without mask_token_id, pard_token")
    assert json.loads((copy / "config.json").read_text())["ptd_token_id"] == 1275
    assert (copy / "model.safetensors").resolve() == (drafter / "model.safetensors").resolve()


def test_d2t_is_left_out_where_the_vocabularies_are_equal(tiny, drafter, tmp_path):
    edit(drafter, draft_vocab_size=1280)
    weights = load_file(drafter / "model.safetensors")
    save_file(weights | {"d2t": torch.zeros(1280, dtype=torch.long)}, drafter / "model.safetensors")
    copy, said = adapted(drafter, tiny / "target", tmp_path)
    assert "d2t left out" in said
    assert load_file(copy / "model.safetensors").keys() == weights.keys() - {"d2t"}


def test_a_map_that_vllm_would_not_apply_is_refused(tiny, drafter, tmp_path):
    edit(drafter, draft_vocab_size=1280)
    with pytest.raises(UsageError, match="d2t is not zero"):
        adapted(drafter, tiny / "target", tmp_path)


def test_taps_in_another_order_are_refused(tiny, drafter, tmp_path):
    edit(drafter, eagle_config={"eagle_aux_hidden_state_layer_ids": [5, 2, 4]})
    with pytest.raises(UsageError, match="vLLM sorts the taps"):
        adapted(drafter, tiny / "target", tmp_path)


def test_quantised_experts_are_refused(tiny):
    check_target(tiny / "target")
    with pytest.raises(UsageError, match="quantised experts"):
        check_target(tiny / "target-mxfp4")


def python(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("echo 0.19.1", "vLLM 0.19.1 is not supported: the recorder knows 0.32.x"),
        ("true", "has no vLLM: `make vllm` sets one up"),
        (
            'case "$1" in -c) echo 0.32.0;; *) echo broken; exit 3;; esac',
            "vLLM failed (exit 3): broken; all it said is in",
        ),
    ],
)
def test_a_vllm_that_does_not_serve(body, sentence, parity, tmp_path):
    found = parity(
        "dump-golden", "--reference", "vllm", "--vllm-python", python(tmp_path, body), "--out", tmp_path / "out"
    )
    assert found.code == 2 and sentence in found.err and not (tmp_path / "out").exists(), found.err


def test_a_missing_vllm_says_how_to_make_one(parity, tmp_path, monkeypatch):
    monkeypatch.setenv("PARITY_VLLM_PYTHON", str(tmp_path / "none"))
    found = parity("dump-golden", "--reference", "vllm")
    assert found.code == 2 and "`make vllm` sets one up" in found.err


def test_an_option_of_the_other_reference_is_refused(parity):
    assert parity("dump-golden", "--batch", 2).code == 2
