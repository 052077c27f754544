"""What a bench is asked for: scenarios, and the settings that they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from parity.bench.decoding import Clock
from parity.bench.records import ClockName
from parity.bench.workload import SHORT, Workload, positions_of
from parity.errors import UsageError
from parity.factories import Factory
from parity.guard import unguarded
from parity.limits import DRAFTS
from parity.progress import Progress, quiet
from parity.seam import ComputesElsewhere

REFERENCE = "parity.references.seam:load"
"""The PyTorch loop as a device."""
PEERS = {"vllm": "parity.references.vllm_capture.serving:load"}
"""Other systems that serve the same pair, as devices."""
CALLED = {REFERENCE: "reference", **{name: peer for peer, name in PEERS.items()}}
"""What those are called in a bench."""
LANES = 5
"""Sequences of a batch where nobody says how many: the number at which the device's lanes are gated."""
Build = Callable[[str, Path, Path, int], Any]
"""A device's name, checkpoints and K to its factory: `parity.factories.Factory`."""


@dataclass(frozen=True)
class Scenario:
    """A kind of load.

    Attributes:
        contexts: what prompts are lengthened to.
        lanes: sequences at once.
        speculates: False for plain decoding alone.
        rounds: how often every prompt is decoded in a run, so that lanes join and leave in mid-generation.
    """

    about: str
    contexts: tuple[str, ...] = (SHORT,)
    lanes: int = 1
    speculates: bool = True
    rounds: int = 1


SCENARIOS = {
    "baseline": Scenario("plain decoding alone, one sequence", speculates=False),
    "single": Scenario("one sequence"),
    "batch": Scenario("several sequences at once", lanes=LANES),
    "large-context": Scenario("one sequence behind a long prompt", contexts=("8K", "16K", "32K")),
    "stress": Scenario("twice the prompts over the lanes, which join and leave", lanes=LANES, rounds=2),
}


@dataclass(frozen=True)
class Setting:
    """A scenario in one context: devices are built once for it."""

    scenario: str
    context: str
    lanes: int

    @property
    def positions(self) -> int | None:
        """That prompts are lengthened to; None where they stay as they are."""
        return positions_of(self.context)


@dataclass(frozen=True)
class BenchRequest:
    """One bench.

    Args:
        workloads: what is decoded.
        devices: as given to `--device`.
        target, drafter: checkpoint folders.
        ks: every K that is tried.
        beside_ks: of those, the K of what runs beside the devices; all where empty.
        contexts, lanes: instead of the scenarios' own, for those that have several of them.
        repeats: timed runs of every cell; one says nothing of spread.
        warm_ups: runs before them, which compile.
        reference: the PyTorch loop runs beside the devices.
        controller: a device that says `varies_k` also runs with K chosen round by round, up to the largest.
        memory: peak memory is measured, in a process of its own for each device and K.
        peer: one of `PEERS` runs beside the devices.
        at_least: what speculation has to be over plain decoding at the best K; 0 asks nothing.
        roofline: the machine's peaks are measured and compared with the work of a round.
        clock: `wall`, or `processor`: seconds that were computed, of devices that wait for nothing; those of another
            process where a device says them (`parity.seam.ComputesElsewhere`).
        ticks: instead of that clock, for tests.
        build: makes a factory, for tests.
    """

    workloads: tuple[Workload, ...]
    target: Path
    drafter: Path
    devices: tuple[str, ...] = ("numpy",)
    precision: str = "bfloat16"
    scenarios: tuple[str, ...] = ("single",)
    contexts: tuple[str, ...] = ()
    ks: tuple[int, ...] = (4,)
    beside_ks: tuple[int, ...] = ()
    lanes: int | None = None
    max_new_tokens: int = 48
    repeats: int = 5
    warm_ups: int = 1
    reference: bool = False
    controller: bool = False
    memory: bool = False
    peer: str = ""
    at_least: float = 1.0
    roofline: bool = False
    clock: ClockName = "wall"
    ticks: Clock | None = None
    build: Build = Factory
    progress: Progress = field(default=quiet, compare=False)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.scenarios if name not in SCENARIOS]:
            raise UsageError(f"--scenario {unknown[0]}: there is {', '.join(SCENARIOS)}")
        if not self.ks or not all(1 <= k <= DRAFTS for k in self.ks) or len({*self.ks}) < len(self.ks):
            raise UsageError(f"-k: several numbers of drafts, 1 to {DRAFTS}, each once; not {list(self.ks)}")
        if twice := [name for name in self.devices if self.devices.count(name) > 1]:
            raise UsageError(f"--device {twice[0]} is named twice: its cells could not be told apart")
        if not {*self.beside_ks} <= {*self.ks}:
            raise UsageError(f"--beside-k {','.join(map(str, self.beside_ks))}: of the K that -k names, some")
        if self.repeats < 1 or self.warm_ups < 0 or self.max_new_tokens < 2:
            raise UsageError(
                "a bench takes one repeat and a budget of 2 tokens at least: the first token is the prefill's"
            )
        if self.peer and self.peer not in PEERS:
            raise UsageError(f"--peer {self.peer}: there is {', '.join(PEERS)}")
        if not self.workloads or not all(workload.prompts for workload in self.workloads):
            raise UsageError("a bench decodes prompts: there is none")

    @property
    def now(self) -> Clock:
        """What seconds are read from."""
        return self.ticks or {"wall": perf_counter, "processor": process_time}[self.clock]

    def clock_of(self, device: Any) -> Clock:
        """What a device's seconds are read from."""
        clock, inside = self.now, unguarded(device)
        if self.ticks is None and self.clock == "processor" and isinstance(inside, ComputesElsewhere):
            return lambda: clock() + inside.processor_time()
        return clock

    def ks_of(self, name: str) -> tuple[int, ...]:
        """Every K of a contender."""
        return self.ks if name in self.devices else self.beside_ks or self.ks

    @property
    def contenders(self) -> tuple[str, ...]:
        """Every device's name, those beside them last."""
        beside = (*((REFERENCE,) if self.reference else ()), *((PEERS[self.peer],) if self.peer else ()))
        return (*self.devices, *(name for name in beside if name not in self.devices))

    def settings(self) -> Iterator[Setting]:
        """Every scenario in each of its contexts."""
        for name in self.scenarios:
            scenario = SCENARIOS[name]
            for context in self.contexts or scenario.contexts:
                positions_of(context)
                yield Setting(name, context, self.lanes or scenario.lanes if scenario.lanes > 1 else 1)
