"""Whether a golden may judge at all: nothing behind it changed, and nothing of it is the device's own source.

`trusted` is the one way from a dump that is only looked at to a golden that judges.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden.checkpoints import Checkpoint
from parity.golden.fields import Variant
from parity.golden.keeping import Record
from parity.golden.producer import Producer
from parity.golden.provenance import checkpoint
from parity.golden.sources import INSTRUMENT, digest, installed, located, package, reached
from parity.golden.synthetic import refuse_synthetic
from parity.golden.views import DumpView, TrustedGolden
from parity.progress import note

DIGESTS = {
    "config_digest": "config",
    "weights_digest": "weights",
    "tokenizer_digest": "tokenizer",
    "chat_template_digest": "chat template",
}


class OpenedGolden(TrustedGolden):
    """A golden that was checked; `trusted` makes it.

    Attributes:
        unknown: what of it cannot be checked here, a sentence each.
    """

    def __init__(self, golden: DumpView, unknown: tuple[str, ...]):
        super().__init__(golden.folder, golden.manifest, golden.declared, golden.rows, golden.parts)
        self._golden, self.unknown = golden, unknown

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[Any] | None:
        """The golden's rows, read and checked once."""
        return self._golden.stored(variant, prompt, round_, stage)

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """The golden's, read and checked once."""
        return self._golden.record(variant, prompt, round_, stage)

    def shards(self, variant: Variant, prompt: int, round_: int, stage: str) -> list[NDArray[Any]]:
        """The golden's, checked."""
        return self._golden.shards(variant, prompt, round_, stage)


def trusted(golden: DumpView, sampled: bool = False, smaller: bool = False) -> OpenedGolden:
    """A golden to judge by, checked once: it names its source, and its checkpoints and that source are unchanged.

    The manifest was checked when it was read, and every tensor is when it is: `Dump` does that for all. What cannot be
    checked here is noted (`parity.progress.note`).

    Args:
        sampled: it may sample; most of what judges compares greedy decoding.
        smaller: it may keep sketches, best logits or some positions; most of what judges reads whole tensors.

    Raises:
        UsageError: it is a device's run, samples or is smaller unasked, is stale, names no source, or its acceptance is
            synthetic.
    """
    if golden.manifest.kind != "golden":
        raise UsageError(f"{golden.folder} is a device's run, not a golden; a golden comes from a reference only")
    if golden.manifest.case.sampling and not sampled:
        raise UsageError(
            f"{golden.folder} samples: `parity run`, `parity diff`, `parity report` and nights take it, and of the "
            "gates provenance, stages and sampling; what else judges compares greedy decoding"
        )
    if golden.keeps and not smaller:
        raise UsageError(
            f"{golden.folder} keeps some of its tensors as less than whole: `parity run` (chained) and `parity diff` "
            "take it; what else judges reads whole tensors (docs/smaller-goldens.md)"
        )
    refuse_unnamed(golden.manifest.producer)
    refuse_synthetic(golden.manifest.producer, str(golden.folder))
    unknown = refuse_stale(golden)
    for sentence in unknown:
        note(sentence)
    return OpenedGolden(golden, unknown)


def refuse_less(dump: DumpView) -> None:
    """Raises:
    UsageError: a run keeps less than whole tensors, which what judges it reads.
    """
    if dump.keeps:
        raise UsageError(
            f"{dump.folder} keeps some of its tensors as less than whole: `parity diff` takes it; what else judges "
            "reads whole tensors (docs/smaller-goldens.md)"
        )


@dataclass(frozen=True)
class Changes:
    """What is no longer what it was when a golden was dumped, and what cannot be told here; in words."""

    checkpoints: tuple[str, ...]
    sources: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        """Everything that is known to have changed."""
        return self.checkpoints + self.sources


def changes(golden: DumpView) -> Changes:
    """What differs now: files that changed since they were last read are digested, nothing is imported."""
    manifest = golden.manifest
    changed, absent = [], []
    for side, part in (("target", manifest.model.target), ("drafter", manifest.model.drafter)):
        if (Path(part.path) / "config.json").is_file():
            changed += [f"the {side}'s {what}" for what in _changed(part)]
        else:
            absent.append(f"{part.path} is no checkpoint here: nobody can tell whether the {side} changed")
    sources, unknown = _sources(manifest.producer)
    return Changes(tuple(changed), tuple(sources), (*absent, *unknown))


def refuse_stale(golden: DumpView) -> tuple[str, ...]:
    """Refuse a golden behind which something changed; what cannot be told comes back, a sentence each.

    Raises:
        UsageError: it is stale; what changed.
    """
    differing = changes(golden)
    if differing.all:
        raise UsageError(
            f"{golden.folder} is stale: {enumerated(differing.all)} changed since it was dumped; make a new one with "
            "`parity dump-golden`"
        )
    return differing.unknown


def enumerated(names: Sequence[str], most: int = 4) -> str:
    """The first few of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def refuse_shared(golden: Producer, device: Producer) -> None:
    """The shared-oracle trap: a golden cannot judge the source that it was made by.

    Raises:
        UsageError: the two have a module or a source file in common, or the golden names none.
    """
    refuse_unnamed(golden)
    if common := shared(golden, device):
        raise UsageError(f"golden and device share source ({common[0]}): such a golden cannot judge it")


def refuse_unnamed(golden: Producer) -> None:
    """A golden that names no source, as an imported one, could be the device's own output.

    Raises:
        UsageError: it is one.
    """
    if not golden.modules:
        raise UsageError(
            f"the golden of {golden.name} does not say which source it was made of: it can be compared with another "
            "golden (`parity corroborate`), not judge a device"
        )


def shared(golden: Producer, device: Producer) -> list[str]:
    """Modules of both, and files of both under two names."""
    names = sorted(set(golden.modules) & set(device.modules))
    theirs = {source: name for name, source in golden.sources.items()}
    return names + [
        f"{name} is {theirs[source]} under another name"
        for name, source in device.sources.items()
        if source in theirs and name not in golden.modules
    ]


def common_source(producer: Producer, other: Producer) -> list[str]:
    """As `shared`, of two references: a package that holds nothing itself (`references`) makes them not one."""
    return [name for name in shared(producer, other) if not (_empty(name, producer) and _empty(name, other))]


def one_opinion(producer: Producer, other: Producer) -> str:
    """Why two references cannot confirm each other, in words; '' where they are independent."""
    unnamed = [one.name for one in (producer, other) if not one.modules]
    if unnamed:
        return f"{unnamed[0]} does not say which source it was made of: nothing shows that they are independent"
    return next((f"both are made of {source}" for source in common_source(producer, other)), "")


def _empty(name: str, producer: Producer) -> bool:
    """Whether a module is only the folder of others: it has no source of its own."""
    inside = any(module.startswith(f"{name}.") for module in producer.modules)
    return inside and name not in producer.sources


class HasModules(Protocol):
    """What is read of a golden's producer: the modules it is made of."""

    @property
    def modules(self) -> Sequence[str]: ...


def device_modules(device: Any, declared: Iterable[str], name: str, golden: HasModules) -> set[str]:
    """The modules a device is made of: those it declares, and all that its class, what it holds and its factory reach.

    A name that is put together at run time is not read as an import: what it brings in is seen where the device holds
    an object of it, and in a process of the device's own (`loaded`).

    A declared module of somebody else's installed package (a model of transformers) is one alone: what the rest of
    that package imports is not read, which takes a minute.

    Args:
        name: as given to `--device`, for the factory's module.
        golden: whose own packages are read as well where the device imports them.
    """
    if hasattr(
        type(device), "reached_modules"
    ):  # parity.isolation.IsolatedDevice, which a diff of two dumps does not import
        modules: set[str] = device.reached_modules(tuple(declared), name, golden.modules)
        return modules
    from parity.guard import unguarded  # there is a device here, and what calls one is loaded

    factory, colon, _ = name.partition(":")
    starts = {type(unguarded(device)).__module__, *([factory] if colon else [])}
    own = {package(start) for start in starts}
    starts |= {module for module in _held(unguarded(device)) if not installed(module)}
    starts |= {module for module in declared if package(module) in own or not installed(module)}
    packages = {module for module in golden.modules if module == package(module)}
    imported = reached((start for start in starts if start in sys.modules), follow=packages) | set(declared)
    return {module for module in imported if package(module) not in (*sys.stdlib_module_names, INSTRUMENT)}


HELD = 5000
"""Objects that are looked through, those nearest to the device first."""

PLAIN = (str, bytes, int, float, type, ModuleType)
"""What holds nothing, or is a module alone."""


def _held(device: object) -> set[str]:
    """The modules of the classes of what an object holds in its attributes, lists and dicts, and of what these hold."""
    waiting, seen, modules = deque([device]), {id(device)}, set()
    while waiting and len(seen) < HELD:
        one = waiting.popleft()
        modules.add(type(one).__module__)
        for other in _inside(one):
            if id(other) not in seen and not issubclass(type(other), PLAIN):
                seen.add(id(other))
                waiting.append(other)
    return {module for module in modules if isinstance(module, str) and module in sys.modules}


def _inside(one: Any) -> list[object]:
    """What an object holds, HELD at the most; read past its class, whose own methods may do anything."""
    found: list[object] = []
    with suppress(AttributeError, TypeError):
        found += islice(dict.values(object.__getattribute__(one, "__dict__")), HELD)
    kind = type(one)
    for holding, held in ((list, list.__iter__), (tuple, tuple.__iter__), (dict, dict.values)):
        if issubclass(kind, holding):
            found += islice(held(one), HELD)
    return found


def loaded(golden: HasModules) -> set[str]:
    """The modules of this process that are of this house's packages behind a golden: of a process in which only a
    device runs, what that device is made of, by whatever name it was imported."""
    rooms = {package(module) for module in golden.modules if module.startswith(f"{INSTRUMENT}.")}
    return {module for module in sys.modules if package(module) in rooms}


def _changed(part: Checkpoint) -> list[str]:
    now = checkpoint(Path(part.path))
    return [what for field, what in DIGESTS.items() if getattr(now, field) != getattr(part, field)]


def _sources(producer: Producer) -> tuple[list[str], list[str]]:
    """Modules whose source is another one by now, and a sentence where that cannot be told."""
    if not producer.sources:
        return [], ["the golden does not say which source files it was made by"]
    paths = {name: located(name) for name in producer.sources}
    absent = [name for name, path in paths.items() if path is None and located(package(name)) is None]
    changed = [
        f"the source of {name}"
        for name, path in paths.items()
        if name not in absent and (path is None or digest(path) != producer.sources[name])
    ]
    note = "is not installed here: nobody can tell whether the references' source changed"
    return changed, [f"{absent[0]} {note}"] if absent else []
