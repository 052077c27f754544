"""Whole layers of real width judged alone on a golden: a clean device, and three faults planted in it.

    python benchmarks/real_layers.py GOLDEN [--device xla] [--layers 0:1] [--fault NAME ...] [--precision float32]

The golden is one of `parity dump-golden --reference plain --memory` (benchmarks/real_size.py makes one); the window's
fault shows where a prompt is longer than the window. Weights stay in their files. One process: the most memory that was
resident counts for all runs so far.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file would be found under the package's name

from parity import compare_dumps, open_golden, run_device  # noqa: E402
from parity.device.layerwise import LayeredTarget  # noqa: E402
from parity.device.mxfp4 import Packed  # noqa: E402


def clean(target: Any) -> None:
    """Nothing."""


def window_one_wide(target: Any) -> None:
    """Each row sees one row more."""
    target.windows = tuple(window and window + 1 for window in target.windows)


def scales_past_the_end(target: Any) -> None:
    """The last expert's last block of scales is read behind the end, where zeros lie: 2^-127."""
    down = target.layers[0]["down"]
    scales = np.array(down.source.scales)
    scales[-1, :, -1] = 0
    down.source = Packed(down.source.blocks, scales)


def sinks_dropped_in_rounds(target: Any) -> None:
    """Verify rows have no sinks, the prompt's have."""
    layer, sinks = partial(type(target).layer, target), target.layers[0]["sinks"]
    none = target.engine.array(np.full(sinks.shape, -1e30, np.float32))

    def run(held: int, x: Any, step: Any, tap: Any) -> Any:
        target.layers[0]["sinks"] = sinks if x.shape[1] > 8 else none
        return layer(held, x, step, tap)

    target.layer = run


FAULTS: tuple[Callable[[Any], None], ...] = (clean, window_one_wide, scales_past_the_end, sinks_dropped_in_rounds)


def judge(golden: Path, device: str, layers: str, precision: str, fault: Callable[[Any], None]) -> None:
    """Run the layers with this fault in each, and print the verdict."""
    opened, begun, processor = LayeredTarget.open, time.monotonic(), time.process_time()

    def planted(self: LayeredTarget, layer: int) -> None:
        opened(self, layer)
        fault(self._target)

    LayeredTarget.open = planted  # type: ignore[method-assign]
    try:
        with TemporaryDirectory() as folder:
            true = open_golden(golden)
            run = run_device(
                true, f"{device},weights=files", "local", precision, out=Path(folder) / "run", layers=layers
            )
            report = compare_dumps(true, run)
    finally:
        LayeredTarget.open = opened  # type: ignore[method-assign]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = f"{time.monotonic() - begun:7.1f} s{time.process_time() - processor:7.1f} s of processor"
    took = f"{seconds}{resident:6.2f} GiB resident"
    print(f"{fault.__name__:24s}{took}  {report.verdict:6s}{report.first_summary[:100]}", flush=True)


def main() -> None:
    """Each in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--device", default="numpy", choices=("numpy", "xla"))
    parser.add_argument("--layers", default="0:1")
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--fault", action="append", choices=[one.__name__ for one in FAULTS], help="Only these.")
    asked = parser.parse_args()
    for fault in FAULTS:
        if not asked.fault or fault.__name__ in asked.fault:
            judge(asked.golden, asked.device, asked.layers, asked.precision, fault)


if __name__ == "__main__":
    main()
