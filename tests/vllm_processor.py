"""What vLLM's kernels for CPUs make of bfloat16 on this processor."""

from __future__ import annotations

from pathlib import Path

import pytest

CPUINFO = Path("/proc/cpuinfo")
LACKING = CPUINFO.exists() and "avx512f" not in CPUINFO.read_text()
OFF = "without AVX-512 vLLM's bfloat16 layers are off by a scale of 11 to 15 standard errors (bound 5): parity fails it"

needs_avx512 = pytest.mark.skipif(LACKING, reason=OFF)
"""For a test in which vLLM's bfloat16 is taken for clean."""
