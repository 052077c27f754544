"""A numerical parity harness for speculative decoding: goldens, runs of devices, verdicts, and tensors by themselves.

Names are looked up when they are first used, so that `import parity` costs next to nothing: docs/api.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.api import (
        bench_device,
        check_device,
        compare_benches,
        compare_dumps,
        device_difference,
        diagnose_device,
        export_dump,
        gate_device,
        import_dump,
        judge_endpoint,
        open_golden,
        read_dump,
        reduce_failure,
        run_device,
        verify_golden,
        worst_slices,
        write_report,
    )
    from parity.bench.records import BenchReport
    from parity.compare.report import Report
    from parity.diagnose import Diagnosis
    from parity.errors import Inconclusive, ParityError, UsageError
    from parity.gates.gate import GateReport
    from parity.golden.store import Dump
    from parity.isolation import ProcessLimits
    from parity.oracles import ReferenceRerun
    from parity.policy import Policy, read_policy
    from parity.producers import dump_golden
    from parity.seam import Description, Device
    from parity.tensors import Bounds, TensorReport, TensorResult, assert_parity, compare_tensors

    __version__: str

_PLACES = {
    "parity.api": (
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
    ),
    "parity.bench.records": ("BenchReport",),
    "parity.compare.report": ("Report",),
    "parity.diagnose": ("Diagnosis",),
    "parity.errors": ("Inconclusive", "ParityError", "UsageError"),
    "parity.gates.gate": ("GateReport",),
    "parity.golden.store": ("Dump",),
    "parity.isolation": ("ProcessLimits",),
    "parity.policy": ("Policy", "read_policy"),
    "parity.oracles": ("ReferenceRerun",),
    "parity.producers": ("dump_golden",),
    "parity.seam": ("Description", "Device"),
    "parity.tensors": ("Bounds", "TensorReport", "TensorResult", "assert_parity", "compare_tensors"),
}
_MODULE = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "BenchReport",
    "Bounds",
    "Description",
    "Device",
    "Diagnosis",
    "Dump",
    "GateReport",
    "Inconclusive",
    "ParityError",
    "Policy",
    "ProcessLimits",
    "ReferenceRerun",
    "Report",
    "TensorReport",
    "TensorResult",
    "UsageError",
    "__version__",
    "assert_parity",
    "bench_device",
    "check_device",
    "compare_benches",
    "compare_dumps",
    "compare_tensors",
    "device_difference",
    "diagnose_device",
    "dump_golden",
    "export_dump",
    "gate_device",
    "import_dump",
    "judge_endpoint",
    "open_golden",
    "read_dump",
    "read_policy",
    "reduce_failure",
    "run_device",
    "verify_golden",
    "worst_slices",
    "write_report",
]


if not TYPE_CHECKING:  # to a type checker a name that is not listed above is an error

    def __getattr__(name: str) -> Any:
        """A public name, from the module that holds it; it is kept, so that this runs once for each (PEP 562)."""
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                value: Any = version("parity-harness")
            except PackageNotFoundError:  # a checkout on PYTHONPATH
                value = "not installed"
        elif name in _MODULE:
            value = getattr(import_module(_MODULE[name]), name)
        else:
            raise AttributeError(f"module 'parity' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
