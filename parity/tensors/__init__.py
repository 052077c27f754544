"""Two arrays, two mappings of arrays or two files compared by relative error, without pipeline or golden.

`inputs` takes arrays from any library, `presets` holds the bounds, `judge` measures a pair, `report` tells the result.
"""

from parity.tensors.check import assert_parity, compare_tensors
from parity.tensors.presets import Bounds
from parity.tensors.report import TensorReport, TensorResult

__all__ = ["Bounds", "TensorReport", "TensorResult", "assert_parity", "compare_tensors"]
