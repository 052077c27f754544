"""The gates of speculative decoding: what numbers alone cannot say. Joined by AND."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from parity.compare.report import INCONCLUSIVE
from parity.errors import ParityError, UsageError
from parity.gates.bench import Bench
from parity.gates.evidence import Check, GateResult, Gates

GATES = {
    "stages": "every stage within its bounds, from the golden's input (local) and with errors travelling (chained)",
    "rollback": "caches after every accept and reject: lengths, contents, dead rows, errors in mid-round",
    "boundary": "the end of the caches: what just fits runs, what does not is refused or decoded plainly",
}
"""Gate names in the order they run, each the module `parity.gates.NAME` with `checks(bench)`."""


def run_gates(bench: Bench, names: Sequence[str] = (), done: Callable[[GateResult], None] = lambda result: None) -> Gates:
    """Run the named gates, or all of them.

    Args:
        done: told each result as it comes.

    Raises:
        UsageError: a name is no gate, or the golden does not fit the device.
    """
    results = []
    for name in names or GATES:
        if name not in GATES:
            raise UsageError(f"--only {name}: no such gate; there is {', '.join(GATES)}")
        results.append(run_gate(bench, name))
        done(results[-1])
    return Gates(bench.device_name, bench.precision, str(bench.golden.folder), tuple(results))


def run_gate(bench: Bench, name: str) -> GateResult:
    """One gate; a device that breaks down under it leaves it inconclusive, the other gates go on."""
    checks = import_module(f"parity.gates.{name}").checks
    command = f"parity gate --only {name} --golden {bench.golden.folder} --device {bench.device_name}"
    command += f" --precision {bench.precision}"
    try:
        found = tuple(checks(bench))
    except UsageError:
        raise
    except ParityError as error:
        found = (Check(name, INCONCLUSIVE, str(error)),)
    except Exception as error:
        found = (Check(name, INCONCLUSIVE, f"{bench.device_name} failed: {type(error).__name__}: {error}"),)
    return GateResult(name, found, command)
