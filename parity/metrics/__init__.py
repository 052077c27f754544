"""Metrics of a tensor pair: one streamed pass, bounded memory, a defined result for every input.

`measure` (pair.py) for floats, `measure_exact` for integers and `topk_overlap` for logits (discrete.py). A pair goes
tile by tile (stream.py) through a kernel (sums.py, fused.py) to a table of sums, and by formulas (moments.py) to a
record (record.py).

Two kernels compute the same sums, held to one float64 oracle by the same property tests: `sums` in NumPy,
`fused` compiled with numba (float32 and bfloat16 in any combination). Why both: `parity diff` of two small
dumps may take six times `import numpy`. Importing numba costs 1.7 times `import numpy` and loading the cached
kernel as much again, while NumPy needs some 100 ns an element against 1 ns; so a process starts with NumPy
and turns to numba once it has measured `stream.WARM_UP` elements. Compiling takes 5 to 8 s of processor
time, once a machine; then it is cached on disk. numba rather than a C extension, because a wheel of it needs no
compiler where parity is installed.
"""

from parity.metrics.discrete import measure_exact, topk_overlap
from parity.metrics.pair import measure
from parity.metrics.record import ExactMetrics, NonFinite, PairMetrics, RowSums, UlpDistances, WorstElement, WorstRow

__all__ = [
    "ExactMetrics",
    "NonFinite",
    "PairMetrics",
    "RowSums",
    "UlpDistances",
    "WorstElement",
    "WorstRow",
    "measure",
    "measure_exact",
    "topk_overlap",
]
