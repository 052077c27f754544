"""Metrics of a tensor pair: one streamed pass, bounded memory, a defined result for every input.

`measure` for floats, `measure_exact` for integers, `topk_overlap` for logits.

Two kernels compute the same sums and are held to the same float64 oracle by the same property tests: one
in NumPy, and one compiled with numba, loaded once a process has measured `engine.WARM_UP` elements.
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
