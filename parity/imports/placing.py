"""Where captured tensors belong: to one prompt, round, stage and rank, with that stage's axes; the rest is listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.golden.views import DumpView
from parity.imports.captured import Captured
from parity.imports.names import MapRow, NameMap, fill, is_number, pattern
from parity.stages import Named

Destination = tuple[int, int, str, int]
"""Prompt, round, full stage name, rank."""


@dataclass(frozen=True)
class Placed:
    """A captured tensor and the row that took it; `entry` is its place along B, None without a list of prompts."""

    captured: Captured
    row: MapRow
    named: Named
    entry: int | None = None


@dataclass
class Placing:
    """Every place that is taken, the names that no row took, and those a row ignores with its reason."""

    taken: dict[Destination, Placed] = field(default_factory=dict)
    unmapped: list[str] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks that there are tensors of."""
        return 1 + max(place[3] for place in self.taken)


def place(tensors: Iterable[Captured], names: NameMap, golden: DumpView) -> Placing:
    """Match every tensor against the map.

    Raises:
        UsageError: two tensors belong to one place, a row names what is no stage or prompt of the golden's pair or
            matches nothing, no tensor is mapped, or whole prompts or ranks are missing.
    """
    placing, used = Placing(), set[MapRow]()
    for captured in tensors:
        matching = _matching(captured, names, golden.manifest.model.num_layers)
        if not matching:
            placing.unmapped.append(captured.name)
        for row, groups in matching:
            used.add(row)
            if row.ignore:
                placing.ignored[captured.name] = row.ignore
            else:
                _take(placing, captured, row, groups, golden)
    for number, row in enumerate(names.rows):
        if row not in used and not row.optional:
            raise UsageError(f"map row {number} ({row.name!r}) matches nothing that the dump holds")
    if not placing.taken:
        few = ", ".join(placing.unmapped[:3])
        raise UsageError(f"no tensor of the dump is mapped to a stage; its names are like {few or 'none at all'}")
    _every_prompt(placing, len(golden.manifest.case.prompts))
    _whole(placing, names.run.ranks or placing.ranks)
    return placing


def _matching(captured: Captured, names: NameMap, num_layers: int) -> list[tuple[MapRow, dict[str, object]]]:
    """The rows that take a tensor: the first that matches, and more where it lets more."""
    rows = []
    for row in names.rows:
        match = pattern(row.name).fullmatch(captured.name)
        values = {"step": captured.step, "L": num_layers, **match.groupdict()} if match else {}
        if match and row.when in (None, "round" if row.when and _round(row, values, captured) else "prefill"):
            rows.append((row, values))
            if not row.also:
                break
    return rows


def _round(row: MapRow, values: Mapping[str, object], captured: Captured) -> int:
    return _number(row.round or ("{round}" if "round" in values else "{step}"), values, captured.name)


def _take(placing: Placing, captured: Captured, row: MapRow, groups: Mapping[str, object], golden: DumpView) -> None:
    """Enter one tensor at the place, or with a list of prompts at the places, that a row gives it."""
    stage = fill(row.stage, groups, captured.name)
    named = golden.declared.get(stage)
    if named is None:
        raise UsageError(f"{captured.name} is mapped to {stage}, which is no stage of the golden's pair")
    _fits(row, named)
    round_ = _round(row, groups, captured)
    prompt = _number(row.prompt or ("{prompt}" if "prompt" in groups else "0"), groups, captured.name)
    rank = _number("{rank}", {"rank": captured.rank, **groups}, captured.name)
    for entry, number in enumerate(row.prompts or (prompt,)):
        if number >= len(golden.manifest.case.prompts):
            count = len(golden.manifest.case.prompts)
            raise UsageError(f"{captured.name} is mapped to prompt {number}; the golden has prompts 0 … {count - 1}")
        place = number, round_, stage, rank
        if place in placing.taken:
            where = f"{stage}, prompt {number}, round {round_}, rank {rank}"
            both = (f"{one.name} ({one.source})" for one in (placing.taken[place].captured, captured))
            raise UsageError(f"two tensors belong to {where}: {' and '.join(both)}")
        placing.taken[place] = Placed(captured, row, named, entry if row.prompts else None)


def _number(text: str, groups: Mapping[str, object], name: str) -> int:
    filled = fill(text, groups, name)
    if not is_number(filled) or int(filled) > limits.ROUNDS:
        raise UsageError(f"{name}: {text} is {filled}, no number of a round, prompt or rank")
    return int(filled)


def _fits(row: MapRow, named: Named) -> None:
    """A row's axes and sharding must be the stage's."""
    own = named.stage.axes
    said = [letter for axis in row.axes for letter in axis.split("*") if letter != "B"]
    if said and sorted(said) != sorted(own):
        raise UsageError(f"map row {row.name!r} has axes {list(row.axes)}; those of {named.name} are {list(own)}")
    if row.splits() and row.sharding not in own:
        known = ", ".join(("sum", "replicated", *own))
        raise UsageError(f"map row {row.name!r}: sharding {row.sharding!r} is none of {known}")
    if named.stage.cache and row.sharding == own[0]:
        raise UsageError(f"map row {row.name!r}: sharding {row.sharding!r}: the rows of a cache cannot be shared out")


def _every_prompt(placing: Placing, prompts: int) -> None:
    """Every prompt of the golden must have a tensor: a run is of all of them."""
    held = {place[0] for place in placing.taken}
    lacking = [str(prompt) for prompt in range(prompts) if prompt not in held]
    if lacking:
        shown = ", ".join(lacking[:8]) + (f" and {len(lacking) - 8} more" if len(lacking) > 8 else "")
        raise UsageError(
            f"no tensor of the dump is of prompt {shown}, of the golden's 0 … {prompts - 1}: a run has every prompt of "
            "its golden; record the others too, or dump a golden of those recorded (parity dump-golden --prompts)"
        )


def _whole(placing: Placing, ranks: int) -> None:
    """Every place must have a tensor of every rank."""
    held: dict[tuple[int, int, str], set[int]] = {}
    for prompt, round_, stage, rank in placing.taken:
        held.setdefault((prompt, round_, stage), set()).add(rank)
    for (prompt, round_, stage), there in held.items():
        if len(there) != ranks or max(there) >= ranks:
            where = f"{stage}, prompt {prompt}, round {round_}"
            raise UsageError(f"{where} has tensors of ranks {sorted(there)}, it should be 0 … {ranks - 1}")


def arranged(placed: Placed, place: Destination, golden: DumpView) -> NDArray[Any]:
    """A tensor with the axes of its stage, logical rows only.

    Raises:
        UsageError: its shape is not what its row says, or a size that is needed is the golden's, which lacks the place.
    """
    row, named, source = placed.row, placed.named, placed.captured.source
    array, own = _read(placed), named.stage.axes
    axes = row.axes or own
    if array.ndim != len(axes):
        said = f"has shape {list(array.shape)}, its axes are [{','.join(axes)}]"
        raise UsageError(f"{source}: {placed.captured.name} {said}")
    if "B" in axes:
        array, axes = _entry(array, axes, placed)
    sizes: tuple[int, ...] = ()
    if row.padded or len(axes) != len(own):
        true = golden.rows.get(("float32", *place[:3]))
        if true is None:
            raise UsageError(
                f"{source}: the golden has no {named.name} in round {place[1]}, so its sizes are not known"
            )
        sizes = true.full_shape
    if len(axes) != len(own):
        array, axes = split(array, axes, dict(zip(own, sizes, strict=True)), f"{source}: {placed.captured.name}")
    array = array.transpose([axes.index(letter) for letter in own])[row.slice]
    return array[: sizes[0]] if row.padded and row.sharding != own[0] else array


def _read(placed: Placed) -> NDArray[Any]:
    """The tensor as it was dumped; integers that its row declares to be bits of bfloat16 as those."""
    array = placed.captured.load()
    if not placed.row.bits:
        return array
    if array.dtype != np.uint16:
        said = f'its row has bits = "{placed.row.bits}", which is of uint16; it has dtype {array.dtype}'
        raise UsageError(f"{placed.captured.source}: {placed.captured.name}: {said}")
    return array.view(ml_dtypes.bfloat16)


def _entry(array: NDArray[Any], axes: tuple[str, ...], placed: Placed) -> tuple[NDArray[Any], tuple[str, ...]]:
    """One entry of the batch."""
    place, count = axes.index("B"), len(placed.row.prompts) or 1
    if array.shape[place] != count:
        said = f"B has size {array.shape[place]}, the row names {count} prompts"
        raise UsageError(f"{placed.captured.source}: {placed.captured.name}: {said}")
    return array.take(placed.entry or 0, axis=place), axes[:place] + axes[place + 1 :]


def split(
    array: NDArray[Any], axes: tuple[str, ...], sizes: Mapping[str, int], what: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """`N*D` as N and D; the first of them may be a rank's part, the others have the size of `sizes`.

    Raises:
        UsageError: that does not divide an axis of `what`.
    """
    shape: list[int] = []
    letters: list[str] = []
    for size, axis in zip(array.shape, axes, strict=True):
        first, *rest = axis.split("*")
        inner = int(np.prod([sizes[letter] for letter in rest], dtype=np.int64))
        if not inner or size % inner:
            raise UsageError(f"{what}: {size} is no multiple of {axis}'s {inner}")
        shape += [size // inner, *(sizes[letter] for letter in rest)]
        letters += [first, *rest]
    return array.reshape(shape), tuple(letters)
