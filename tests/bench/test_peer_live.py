"""vLLM beside a device, where `make vllm` has set it up."""

from __future__ import annotations

import json
import os

import pytest

from parity.errors import Inconclusive
from parity.references.vllm_capture.serving import load

pytestmark = pytest.mark.skipif("PARITY_VLLM_PYTHON" not in os.environ, reason="`make vllm` runs this")


def test_vllm_is_timed_beside_the_device_and_emits_what_it_emits_plainly(parity, tiny, tmp_path):
    asked = (
        "--prompts",
        tiny / "prompts/chat.jsonl",
        "--first",
        1,
        "-k",
        "1,4",
        "--beside-k",
        4,
        "--precision",
        "float32",
    )
    how = ("--repeats", 3, "--max-new-tokens", 24, "--at-least", 0, "--peer", "vllm", "--json", tmp_path / "made.json")
    ended = parity("bench", *asked, *how)
    assert ended.code == 0, ended.out + ended.err
    cells = {
        (one["axes"]["device"], one["axes"]["k"]): one
        for one in json.loads((tmp_path / "made.json").read_text())["cells"]
    }
    assert set(cells) == {("numpy", 0), ("numpy", 1), ("numpy", 4), ("vllm", 0), ("vllm", 4)}
    ours, theirs = (cells[name, 4]["overall"]["speculation"] for name in ("numpy", "vllm"))
    assert theirs["mean_acceptance_length"] == ours["mean_acceptance_length"]  # one drafter, one text, float32


def test_an_engine_that_does_not_start_says_its_last_line(tiny, monkeypatch, tmp_path):
    (tmp_path / "inside.py").write_text("import sys; sys.exit('no engine today')")
    monkeypatch.setattr("parity.references.vllm_capture.serving.INSIDE", tmp_path / "inside.py")
    with pytest.raises(Inconclusive, match=r"exit 1.*no engine today"):
        load(tiny / "target", tiny / "drafter", 4).decode_plain([1, 2, 3], 4)
