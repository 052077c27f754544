"""The gates of speculative decoding: what numbers alone cannot say. Joined by AND."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from parity.compare.report import INCONCLUSIVE
from parity.errors import ParityError, UsageError
from parity.gates.context import Bench
from parity.gates.evidence import Check, GateResult, Gates
from parity.guard import told

GATES = {
    "provenance": "the golden is not stale, and shares no source with the device",
    "stages": "every stage within its bounds, from the golden's input (local) and with errors travelling (chained)",
    "taps": "every tap is, bit for bit, the target's residual stream its name says, one position before its token",
    "decisions": "every logits row: same choice, tie, noise or bug; the lowest id wins a tie",
    "lossless": "speculation emits what plain greedy decoding emits, that is the golden's text, and drafts are accepted by the rule",
    "verify": "a pass of K+1 rows gives what K+1 passes of one row give, in any batch and padding",
    "acceptance": "acceptance against the reference on the same prompts, with an interval; counts that add up",
    "rollback": "caches after every accept and reject: lengths, contents, dead rows, errors in mid-round",
    "boundary": "the end of the caches: what just fits runs, what does not is refused or decoded plainly",
    "positions": "q and k after RoPE at every position up to 131,071, against float64; unknown schedules are errors",
}
"""Gate names in the order they run, each the module `parity.gates.NAME` with `checks(bench)`."""


def run_gates(
    bench: Bench, names: Sequence[str] = (), done: Callable[[GateResult], None] = lambda result: None
) -> Gates:
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
    """One gate; a device that breaks down under it leaves the rest of it inconclusive, what was found before stays."""
    checks = import_module(f"parity.gates.{name}").checks
    command = f"parity gate --only {name} --golden {bench.golden.folder} --device {bench.device_name}"
    command += f" --precision {bench.precision}"
    found = []
    try:
        for check in checks(bench):
            found.append(check)
    except UsageError:
        raise
    except ParityError as error:
        found.append(Check(name, INCONCLUSIVE, str(error)))
    except Exception as error:
        found.append(Check(name, INCONCLUSIVE, str(told(bench.device_name, f"gate {name}", error))))
    return GateResult(name, tuple(found), command)
