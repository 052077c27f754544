"""What a machine allows: a phase takes at least its FLOPs over the peak rate, and its bytes over the memory's.

Peaks of this machine are measured, by a matrix product and a sum over memory; Trainium's are those that AWS publishes,
for a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from parity.bench.decoding import Clock
from parity.bench.model import expected_tokens
from parity.bundled import published_pair
from parity.errors import NotOffered, UsageError
from parity.factories import work_of
from parity.seam import Work

SIDE, BLOCK = 1024, 2**28
"""Of the square matrices, whose product is bound by arithmetic; and bytes that are summed, beyond every cache."""
TRIES = 5
"""The best of them counts: a peak is what the machine can, and a load from outside only takes away."""


@dataclass(frozen=True)
class Peaks:
    """What a machine can: FLOP and bytes a second.

    Args:
        source: where the figures are from.
    """

    flops: float
    bytes: float
    source: str = "measured"

    def seconds(self, work: Work) -> float:
        """The least time that this work takes."""
        return max(work.flops / self.flops, work.bytes / self.bytes)

    def bound_by(self, work: Work) -> str:
        """What bounds it: `arithmetic` or `memory`."""
        return "arithmetic" if work.flops / self.flops > work.bytes / self.bytes else "memory"


_NEURON = "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/general/arch/neuron-hardware"
MACHINES = {
    "trainium1": Peaks(190e12 / 2, 820 * 2**30 / 2, f"{_NEURON}/trainium.html"),
    "trainium2": Peaks(667e12 / 8, 2.9e12 / 8, f"{_NEURON}/trainium2.html"),
}
"""One core of a chip as AWS describes it, in BF16: 190 TFLOPS and 820 GiB/s of two NeuronCore-v2; 667 TFLOPS and 2.9
TB/s of eight NeuronCore-v3."""


def measured_peaks(clock: Clock = perf_counter) -> Peaks:
    """This machine's, of float32 on as many threads as NumPy has: a product of matrices, and a sum over memory."""
    drawn = np.random.default_rng(0)
    left, right = (drawn.standard_normal((SIDE, SIDE), dtype=np.float32) for _ in range(2))
    long = np.ones(BLOCK // 4, np.float32)
    product = min(_timed(clock, lambda: left @ right) for _ in range(TRIES))
    total = min(_timed(clock, long.sum) for _ in range(TRIES))
    return Peaks(2.0 * SIDE**3 / product, BLOCK / total)


def _timed(clock: Clock, call: Callable[[], object]) -> float:
    began = clock()
    call()
    return max(clock() - began, 1e-9)


@dataclass(frozen=True)
class Planned:
    """A round of K drafts by the roofline.

    Attributes:
        tokens: expected of a round.
        seconds: of each phase at the least, plain decoding's step among them.
        bound: what bounds each phase.
        speed_up: over plain decoding.
    """

    k: int
    tokens: float
    seconds: dict[str, float]
    bound: dict[str, str]
    work: dict[str, Work]
    speed_up: float


def planned(
    device: str,
    pair: tuple[Path, Path],
    k: int,
    conditional: Sequence[float],
    context: int,
    precision: str,
    peaks: Peaks,
) -> Planned | None:
    """The roofline of one round; None where the device does not say its work (`parity.seam.Works`).

    Args:
        conditional: acceptance of each draft, those before it accepted; the last one stands for those behind it.

    Raises:
        UsageError: it says no work of `plain`, `draft` or `verify`.
    """
    work = work_of(device, *pair, k, context, precision)
    if work is None:
        return None
    if missing := [phase for phase in ("plain", "draft", "verify") if phase not in work]:
        raise UsageError(f"--device {device}: its function work says nothing of {missing[0]}")
    rates = [*conditional, *[conditional[-1]] * k][:k]
    seconds = {phase: peaks.seconds(one) for phase, one in work.items()}
    tokens, round_ = expected_tokens(rates), _round(seconds)
    bound = {phase: peaks.bound_by(one) for phase, one in work.items()}
    return Planned(k, tokens, seconds, bound, dict(work), tokens * seconds["plain"] / round_)


def _round(seconds: Mapping[str, float]) -> float:
    return sum(second for phase, second in seconds.items() if phase != "plain")


def plan_rounds(
    device: str,
    model: str,
    ks: Sequence[int],
    conditional: Sequence[float],
    context: int,
    precision: str,
    machine: str = "this",
) -> tuple[list[Planned], Peaks]:
    """The roofline of rounds of a published pair, and the peaks it is by.

    Args:
        device: whose work it is.
        model: `tiny`, `20b`, `120b`.
        machine: one of `MACHINES`, or `this`, which is measured.

    Raises:
        UsageError: the configs are not there, or K drafts do not fit.
        NotOffered: the device does not say its work.
    """
    peaks = MACHINES.get(machine) or measured_peaks()
    found = [planned(device, published_pair(model), k, conditional, context, precision, peaks) for k in ks]
    rows = [one for one in found if one is not None]
    if not rows:
        raise NotOffered(f"--device {device}: its module has no function work (`parity.seam.Works`)")
    return rows, peaks
