"""What vLLM's kernels for CPUs make of bfloat16 on this processor."""

from __future__ import annotations

from pathlib import Path

import pytest

CPUINFO = Path("/proc/cpuinfo")
LACKING = CPUINFO.exists() and "avx512_bf16" not in CPUINFO.read_text()
OFF = (
    "without AVX512-BF16 vLLM's kernels for CPUs cut float32 to bfloat16 instead of rounding it, and parity fails them "
    "(docs/vllm.md)"
)

rounds = pytest.mark.skipif(LACKING, reason=OFF)
"""For a test in which vLLM's bfloat16 is taken for clean."""
