"""The front of the library: goldens, runs and verdicts as the command line has them, without printing anything.

Every function takes paths as `str` or `Path`; whatever the reader did wrong raises `parity.errors.ParityError`.
"""

from parity.api.benches import bench_device, compare_benches
from parity.api.devices import (
    check_device,
    compare_dumps,
    device_difference,
    diagnose_device,
    reduce_failure,
    run_device,
    worst_slices,
)
from parity.api.dumps import export_dump, import_dump, open_golden, read_dump, verify_golden, write_report
from parity.api.gates import gate_device, judge_endpoint

__all__ = [
    "bench_device",
    "check_device",
    "compare_benches",
    "compare_dumps",
    "device_difference",
    "diagnose_device",
    "export_dump",
    "gate_device",
    "import_dump",
    "judge_endpoint",
    "open_golden",
    "read_dump",
    "reduce_failure",
    "run_device",
    "verify_golden",
    "worst_slices",
    "write_report",
]
