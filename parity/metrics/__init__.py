"""Metrics of a tensor pair: one streamed pass, bounded memory, a defined result for every input.

`measure` for floats, `measure_exact` for integers, `topk_overlap` for logits.

Two kernels compute the same sums, held to one float64 oracle by the same property tests: `plain` in NumPy,
`fused` compiled with numba (float32 and bfloat16 in any combination). Why both: `parity diff` of two small
dumps may take six times `import numpy`. Importing numba costs 1.7 times `import numpy` and loading the cached
kernel as much again, while NumPy needs some 100 ns an element against 1 ns; so a process starts with NumPy
and turns to numba once it has measured `engine.WARM_UP` elements. Compiling takes 5 to 8 s of processor
time, once a machine; then it is cached on disk. numba rather than a C extension, because a wheel of it needs no
compiler where parity is installed.
"""

from parity.metrics.exact import measure_exact
from parity.metrics.pair import measure
from parity.metrics.record import ExactMetrics, NonFinite, PairMetrics, Rows, WorstElement, WorstRow
from parity.metrics.topk import topk_overlap

__all__ = [
    "ExactMetrics",
    "NonFinite",
    "PairMetrics",
    "Rows",
    "WorstElement",
    "WorstRow",
    "measure",
    "measure_exact",
    "topk_overlap",
]
