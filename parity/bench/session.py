"""A bench: contestants built, warmed up, and timed in turn, so that drift of the machine falls on all alike."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.bench.cell import MeasuredCell
from parity.bench.decoding import Prompts, controlled, plain, plain_by_verbs, speculative, two_ways
from parity.bench.pair import with_room
from parity.bench.records import BenchAxes, Decoding
from parity.bench.request import CALLED, SCENARIOS, BenchRequest, Setting
from parity.bench.watched import watched
from parity.bench.workload import Workload
from parity.errors import Inconclusive, NotOffered
from parity.factories import options_of
from parity.seam import Looping

MAKE = {"plain": plain, "plain-by-verbs": plain_by_verbs, "speculative": speculative, "controlled": controlled}
"""Who decodes so."""
CHUNK = 512
"""Rows of a prefill at a time, of long prompts: their scores with a whole cache would not fit beside it. A compiled
engine has programs of its own for every pass that sees another width: half as many as with 256 rows, and half the time
to compile them, which at 8K is that of a prefill."""


@dataclass
class Session:
    """The measuring of a request.

    Attributes:
        cells: as they are measured.
        notes: what was done to the checkpoints.
    """

    request: BenchRequest
    folder: Path
    cells: list[MeasuredCell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def measure(self) -> None:
        """Everything that was asked for."""
        settings = list(self.request.settings())
        for number, setting in enumerate(settings):
            workloads = [self.lengthened(setting, one) for one in self.request.workloads]
            pair = self.pair(setting, workloads, self.folder / str(number))
            devices = self._devices(setting, pair, workloads)
            for workload in workloads:
                self._block(setting, workload, devices)

    @staticmethod
    def lengthened(setting: Setting, workload: Workload) -> Workload:
        """The workload in a setting's context."""
        return workload if setting.positions is None else workload.lengthened(setting.positions)

    def pair(self, setting: Setting, workloads: list[Workload], folder: Path) -> tuple[Path, Path]:
        """Checkpoints with room for a setting."""
        most = max(self.request.ks)
        need = _longest(workloads) + self.request.max_new_tokens + most
        pair, said = with_room((self.request.target, self.request.drafter), need, most, folder)
        self.notes += [note for note in said if note not in self.notes]
        return pair

    def _devices(self, setting: Setting, pair: tuple[Path, Path], workloads: list[Workload]) -> dict[str, Any]:
        """By contender: a device for each K, or why there is none."""
        room = _longest(workloads) + self.request.max_new_tokens + max(self.request.ks)
        most = None if SCENARIOS[setting.scenario].speculates else 1
        return {
            name: {k: self._built(name, pair, k, setting, room) for k in self.request.ks_of(name)[:most]}
            for name in self.request.contenders
        }

    def _built(self, name: str, pair: tuple[Path, Path], k: int, setting: Setting, room: int) -> Any:
        """A device, or the sentence that says why there is none."""
        try:
            options = self.wanted(name, pair, k, setting, room)
            return self.request.build(name, *pair, k)(self.request.precision, k=k, **options)
        except Inconclusive as error:
            return str(error)

    def wanted(self, name: str, pair: tuple[Path, Path], k: int, setting: Setting, room: int) -> dict[str, int]:
        """What a setting asks of a factory; what only saves memory is left out where it takes no such thing."""
        factory = self.request.build(name, *pair, k)
        options = {"lanes": setting.lanes} if setting.lanes > 1 else {}
        wished = {"max_positions": room, "prefill_rows": CHUNK} if setting.positions else {}
        for option, value in wished.items():
            try:
                factory.given(**{option: value})
            except NotOffered:
                continue
            if option not in options_of(name):
                options[option] = value
        return options

    def _block(self, setting: Setting, workload: Workload, devices: dict[str, Any]) -> None:
        """Warm up, then time all cells of a block in turn: forwards and backwards, each repeat from another one."""
        request = self.request
        cells = [cell for name, by_k in devices.items() for cell in self._contestants(setting, workload, name, by_k)]
        self.cells += cells
        groups = _groups(workload, setting)
        gc.collect()
        where = f"{setting.scenario} {setting.context} {workload.name}"
        for group in groups:
            request.progress(0, _steps(request, groups), f"{where} watched")
            for cell in cells:
                cell.watch(group, request.max_new_tokens)
        for repeat in range(-request.warm_ups, request.repeats):
            for number, group in enumerate(groups):
                request.progress((repeat + request.warm_ups) * len(groups) + number, _steps(request, groups), where)
                for cell in _in_turn(cells, max(repeat, 0) + number):
                    cell.run(group, request.max_new_tokens, repeat if repeat >= 0 else None)
        for cell in cells:
            cell.settle()

    def _contestants(
        self, setting: Setting, workload: Workload, name: str, devices: dict[int, Any]
    ) -> list[MeasuredCell]:
        """The cells of one device; of prompts as they are one of them is compared with a run that somebody watches.

        That is the one of most drafts: its tokens are those of plain decoding, or it fails, and its rounds are what
        makes it fast. Behind a lengthened prompt nobody watches: its stages would not fit beside it.
        """
        cells, (most, device) = list(self._ways(setting, workload, name, devices)), max(devices.items())
        if setting.positions is None and not isinstance(device, str):
            drafting = [cell for cell in cells if (cell.axes.decoding, cell.axes.k) == ("speculative", most)]
            (drafting or cells)[-1].watching = watched(device, drafts=bool(drafting))
        return cells

    def _ways(self, setting: Setting, workload: Workload, name: str, devices: dict[int, Any]) -> Iterator[MeasuredCell]:
        """Plain decoding, every K, and the controller of one device."""
        first, most = next(iter(devices)), max(devices)
        yield self._cell(setting, workload, name, devices[first], "plain", 0)
        if two_ways(devices[first]):
            yield self._cell(setting, workload, name, devices[first], "plain-by-verbs", 0)
        if not SCENARIOS[setting.scenario].speculates:
            return
        for k, device in devices.items():
            yield self._cell(setting, workload, name, device, "speculative", k)
        if self.request.controller and name in self.request.devices:
            yield self._cell(setting, workload, name, devices[most], "controlled", most)

    def _cell(
        self, setting: Setting, workload: Workload, name: str, device: Any, decoding: Decoding, k: int
    ) -> MeasuredCell:
        loop = options_of(name).get("loop", "own" if isinstance(device, Looping) else "verbs")
        axes = BenchAxes(
            scenario=setting.scenario,
            workload=workload.name,
            context=setting.context,
            device=CALLED.get(name, name),
            loop=loop,
            decoding=decoding,
            k=k,
            lanes=setting.lanes,
        )
        if isinstance(device, str):
            return MeasuredCell(axes, error=device)
        try:
            return MeasuredCell(axes, MAKE[decoding](device, self.request.clock_of(device)), device.describe().eos)
        except Inconclusive as error:
            return MeasuredCell(axes, error=str(error))


def _longest(workloads: list[Workload]) -> int:
    return max(len(ids) for workload in workloads for ids in workload.prompts.values())


def _groups(workload: Workload, setting: Setting) -> list[Prompts]:
    """What runs at once: each prompt alone, or all of them over the lanes, as often as the scenario says."""
    rounds = SCENARIOS[setting.scenario].rounds
    prompts = {
        name if not again else f"{name} again {again}": ids
        for again in range(rounds)
        for name, ids in workload.prompts.items()
    }
    return [prompts] if setting.lanes > 1 else [{name: ids} for name, ids in prompts.items()]


def _in_turn(cells: list[MeasuredCell], number: int) -> list[MeasuredCell]:
    """Another order for every number: every second time backwards, and every second time from the next cell on."""
    start = number // 2 % len(cells)
    ordered = cells[start:] + cells[:start]
    return ordered[::-1] if number % 2 else ordered


def _steps(request: BenchRequest, groups: list[Prompts]) -> int:
    return (request.repeats + request.warm_ups) * len(groups)
