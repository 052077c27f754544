"""Some layers of a target judged alone: which they are, and a device's run of one after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.progress import Progress
from parity.seam import Layered
from parity.stages import Named
from parity.trace import ForcingTrace

LENGTH = "kv.target.length"
OUTSIDE = "outside --layers"


@dataclass(frozen=True)
class Layers:
    """Target layers `first` to `last` - 1."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str, count: int) -> Layers:
        """What was written as A:B, of a target of so many layers.

        Raises:
            UsageError: it is no such range.
        """
        found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", text)
        if found is None or not int(found[1]) < int(found[2]) <= count:
            raise UsageError(f"--layers {text[:40]}: it takes A:B, layers A to B - 1 of the target's 0 to {count - 1}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"

    def holds(self, named: Named) -> bool:
        """Whether this is a stage of one of them: what it computes, or its cache."""
        ours = named.stage.template.startswith(("target.layers.", "kv.target."))
        return ours and named.layer is not None and self.first <= named.layer < self.last

    def refuse_missing(self, golden: DumpView) -> None:
        """Raises:
        UsageError: the golden lacks a stage of these layers, what enters the first one, or the caches' lengths.
        """
        due = [entering(self.first), LENGTH, *(name for name, named in golden.declared.items() if self.holds(named))]
        for name in due:
            if name not in golden.manifest.stages:
                raise UsageError(
                    f"{golden.folder} lacks {name}, from which layers {self} are run: dump it without --stage"
                )


def entering(layer: int) -> str:
    """The stage that enters a layer: in_of[l]."""
    return f"target.layers.{layer - 1}.out" if layer else "target.embed"


def run_layers(
    device: Layered,
    golden: DumpView,
    layers: Layers,
    make_trace: Callable[[int], ForcingTrace],
    progress: Progress,
) -> Iterator[tuple[int, ForcingTrace]]:
    """Every prompt's number and trace, once all layers have run; each starts every round from the golden's input."""
    prompts = golden.manifest.case.prompts
    traces = [make_trace(number) for number in range(len(prompts))]
    total = (layers.last - layers.first) * len(prompts)
    for layer in range(layers.first, layers.last):
        device.open(layer)
        for number, trace in enumerate(traces):
            progress((layer - layers.first) * len(prompts) + number, total, f"layer {layer}, {prompts[number].id}")
            _run_sequence(device, layer, trace, len(prompts[number].generated.acceptance_length))
    yield from enumerate(traces)


def _run_sequence(device: Layered, layer: int, trace: ForcingTrace, rounds: int) -> None:
    """Prefill and rounds of one prompt through one layer."""
    device.clear()
    for round_ in range(rounds + 1):
        trace.begin(round_)
        rows, length = (trace.golden(round_, name) for name in (entering(layer), LENGTH))
        if rows is None or length is None:
            raise UsageError(f"the golden has no {entering(layer)} or {LENGTH} in round {round_}")
        device.forward(rows, trace)
        device.keep(int(length[0]), trace)


def layers_of(run: DumpView) -> Layers | None:
    """The layers that a run is of alone; None where it is one of the whole device."""
    case = run.manifest.case
    return Layers(*case.layers) if case.layers else None


def refuse_layers(run: DumpView, who: str) -> None:
    """Raises:
    UsageError: a run is of some layers alone, and `who` judges whole devices.
    """
    if layers := layers_of(run):
        raise UsageError(f"{run.folder} holds target layers {layers} alone; {who} judges whole devices")


def within(layers: Layers | None, names: Sequence[str], declared: Mapping[str, Named]) -> list[str]:
    """The stages that a run of these layers shows; all of them where it is one of the whole device."""
    return [name for name in names if layers is None or (name in declared and layers.holds(declared[name]))]
