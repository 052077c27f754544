"""The contract of a device, line by line, checked before any golden is compared (docs/adding-a-device.md)."""

from __future__ import annotations

from pathlib import Path

from parity.batching import VERBS
from parity.contract.describing import check_description
from parity.contract.lines import LINES, LOOP_ONLY, OK, VERBS_ONLY, Checked, Ledger
from parity.contract.loops import LoopWalk
from parity.contract.probes import probe
from parity.contract.walk import Stopped, Walk, rows_needed
from parity.errors import ParityError
from parity.factories import Factory
from parity.guard import unguarded
from parity.pair_sizes import PairSizes, read_pair
from parity.seam import Batched, Device, Looping

__all__ = ["LINES", "Checked", "check_device"]


def check_device(name: str, target: Path, drafter: Path, k: int = 4, precision: str = "bfloat16") -> Checked:
    """Walk a device through the contract on a prompt of two tokens; no golden, no reference.

    Args:
        name: an engine, or `package.module:factory`.
        target, drafter: checkpoints; the sizes are those of their config.json.
        precision: that is asked for, `bfloat16` or `float32`.

    Raises:
        UsageError: the name is unknown, cannot be imported, or there is no such checkpoint.
        DeviceFailed: its module or factory raises.
    """
    pair, ledger = read_pair(target, drafter), Ledger()
    device = Factory(name, target, drafter, k).unchecked(precision)
    stopped = ""
    try:
        says = _walk(device, ledger, pair, precision, k)
    except Stopped as ended:
        says, stopped = "", str(ended)
    unmet = "the walk ended before it" if stopped else "no stage that it is about is handed over"
    lines = []
    for line in LINES:
        if line in LOOP_ONLY and not isinstance(device, Looping):
            continue
        state = ledger.state(line)
        why = ledger.breaches.get(line, [] if state == OK else [ledger.unmet.get(line, unmet)])
        lines.append((line, state, tuple(why)))
    return Checked(name, says or name, precision, k, tuple(lines), tuple(ledger.breaches), stopped)


def _walk(device: Device, ledger: Ledger, pair: PairSizes, precision: str, k: int) -> str:
    """The device's own name, once it was walked through.

    Raises:
        Stopped: the walk ended before its end.
    """
    loop = isinstance(device, Looping)
    batched = tuple(f"{verb}_batch" for verb in VERBS)
    owes = ("describe", *(() if loop else batched if isinstance(device, Batched) else VERBS))
    lacks = [verb for verb in owes if not callable(getattr(unguarded(device), verb, None))]
    if not ledger.expect("factory: verbs", not lacks, f"what the factory returned has no {', '.join(lacks)}"):
        raise Stopped("there is nothing to call")
    for line in VERBS_ONLY if loop else ():
        ledger.skip(line, "the device runs a loop of its own")
    try:
        says, again = device.describe(), device.describe()
    except ParityError as error:
        raise Stopped(str(error)) from error
    view = check_description(says, again, ledger, pair, precision, k, rows_needed(k), loop)
    if view is None or "describe: layers" in ledger.breaches or "describe: case" in ledger.breaches:
        raise Stopped("describe is what the rest is checked by")
    if loop:
        LoopWalk(device, says, view, ledger, pair).rounds()
        ledger.skip("tap: returned", "the device runs a loop of its own: `parity diff` follows it")
        return str(says.name)
    walk = Walk(device, says, view, ledger, pair)
    walk.open()
    walk.rounds()
    walk.budget()
    for further in (walk.changing, walk.plain, walk.raising, lambda: probe(walk)):
        if ledger.breaches:
            raise Stopped("the lines behind are checked once these hold")
        further()
    return str(says.name)
