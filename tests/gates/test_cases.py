"""Other cases than the default one, in float32: small and large K, MXFP4 experts, raw prompts."""

from __future__ import annotations

import pytest

from parity.api import compare_dumps, run_device
from tests.sample import WHOLE, cut, sample


@pytest.fixture(scope="module")
def tiny(three_layers):
    return three_layers


@pytest.mark.parametrize(
    "case",
    [
        dict(k=1, prompts="prompts/raw.jsonl", max_new_tokens=4),
        dict(k=8, target="target-mxfp4"),
    ],
    ids=["K=1, raw", "K=8, mxfp4"],
)
def test_the_device_agrees_with_the_references(case, remake_small_golden, tiny, tmp_path):
    paths = {key: tiny / value for key, value in case.items() if isinstance(value, str)}
    lines = paths.get("prompts", tiny / "prompts/chat.jsonl").read_text().splitlines()
    raw = "prompts" in paths
    lines = (lines if WHOLE else sample(lines)[:1]) if raw else [cut(line) for line in lines[: 2 if WHOLE else 1]]
    paths["drafter"] = tiny / "drafter"
    paths.setdefault("target", tiny / "target")
    paths["prompts"] = tmp_path / "prompts.jsonl"
    paths["prompts"].write_text("\n".join(lines))
    golden = remake_small_golden(tmp_path / "golden", **case | paths)
    report = compare_dumps(golden, run_device(golden, "numpy", "chained", "float32", out=tmp_path / "run"))
    assert report.verdict == "pass", report.first
