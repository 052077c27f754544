"""What a golden will take, before any work: geometry, what is read, memory and disk; by configs and files' headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from safetensors import safe_open

from parity.errors import UsageError
from parity.golden.keeping import Keeping
from parity.golden.smaller import Smaller
from parity.pair_sizes import PairSizes, read_pair
from parity.stages import PREFILL, ROUND, Named, declared, select

FLOAT_BYTES, EXACT_BYTES = 4 + 2 + 2, 3 * 8
"""Of a number: in float32 and in both bfloat16 floors; of an id, int64, in all three."""

KEPT_BYTES = 4
"""Of a number of a sketch, or of best logits."""

ROW_BYTES = 400
"""Of a tensor in the manifest and in its shard's header, at the most."""

SURE = 0.9
"""Of what the fewest rounds take: some rows are counted generously."""

LOADED = 4 + 2
"""Bytes of a parameter that a reference has in memory: in float32 and in bfloat16."""


@dataclass(frozen=True)
class GoldenPlan:
    """What `dump-golden` is about to do.

    Attributes:
        geometry: numbers of the pair by name.
        rows: of all prompts together.
        rounds: of a prompt, the fewest and the most.
        parameters: of both models, MXFP4 counted as numbers.
        read: bytes of both models' files.
        memory: bytes of their weights in both precisions, where all are loaded.
        disk: bytes of the golden, the fewest and the most.
    """

    geometry: dict[str, int]
    prompts: int
    rows: int
    rounds: tuple[int, int]
    parameters: int
    read: int
    memory: int
    disk: tuple[int, int]

    def refuse_beyond(self, most: int | None) -> None:
        """Raises:
        UsageError: the golden takes more bytes than that even if every draft is accepted.
        """
        if most is not None and self.disk[0] > most:
            raise UsageError(
                f"--max-bytes {most}: this golden takes at least {self.disk[0]} bytes; nothing was written"
            )


def golden_plan(
    pair: tuple[Path, Path],
    family: str,
    lengths: Sequence[int],
    k: int,
    budget: int,
    globs: Sequence[str] = (),
    smaller: Smaller | None = None,
) -> GoldenPlan:
    """The plan of a golden over prompts of these lengths.

    Args:
        smaller: what is kept of its tensors; all of them where None.

    Raises:
        UsageError: a config or a weights' file cannot be read, a glob matches no stage, or what is kept cannot be.
    """
    sizes = read_pair(*pair)
    names = declared(sizes.layers, sizes.drafter_layers, family)
    stages = [names[name] for name in select(globs, names)]
    asked = smaller or Smaller()
    keeping = Keeping(asked.kept(), asked.positions, names)
    most, fewest = max(budget - 1, 0), -(-max(budget - 1, 0) // (k + 1))
    written = [
        sum(_bytes(sizes, stages, length, k, rounds, keeping) for length in lengths) for rounds in (fewest, most)
    ]
    parameters = [number for folder in pair for number in _parameters(folder)]
    return GoldenPlan(
        geometry=_geometry(sizes),
        prompts=len(lengths),
        rows=sum(lengths),
        rounds=(fewest, most),
        parameters=sum(parameters),
        read=sum(file.stat().st_size for folder in pair for file in folder.glob("*.safetensors")),
        memory=LOADED * sum(parameters),
        disk=(int(SURE * written[0]), written[1]),
    )


def _geometry(sizes: PairSizes) -> dict[str, int]:
    """What people compare with what they have: widths of hidden, q, the drafter's fused input and its taps."""
    target, drafter = sizes.sizes["target"], sizes.sizes["drafter"]
    heads, size = target.get("N"), target.get("D")
    known = {
        "target layers": sizes.layers,
        "hidden": target.get("H"),
        "q width": heads * size if heads and size else None,
        "kv heads": target.get("G"),
        "experts": target.get("E"),
        "vocabulary": sizes.vocab,
        "drafter layers": sizes.drafter_layers,
        "drafter hidden": drafter.get("H"),
        "taps' width": drafter.get("TH"),
        "draft vocabulary": drafter.get("VD"),
    }
    return {name: number for name, number in known.items() if number}


def _bytes(sizes: PairSizes, stages: Sequence[Named], length: int, k: int, rounds: int, keeping: Keeping) -> int:
    """At the most, of a prompt of so many rows and rounds."""
    total = 0
    for named in stages:
        axes, when = named.stage.axes, named.stage.when
        shape = (1, *(size or 1 for size in sizes.shape(named)[1:]))
        number = EXACT_BYTES if named.stage.exact else FLOAT_BYTES
        if form := keeping.form(named.name, shape):
            width, number = form.columns(False) + 2 * form.columns(True), KEPT_BYTES
        else:
            width = prod(shape)
        each = {"W": 2 * k + 1, "K": k, "1": 1}.get(axes[0], k + 1)
        first = length if named.stage.exact else keeping.count(length)
        rows = (first if axes[0] != "1" else 1) * (PREFILL in when) + each * rounds * (ROUND in when)
        tensors = (PREFILL in when) + rounds * (ROUND in when)
        total += rows * width * number + 3 * tensors * ROW_BYTES
    return total


def _parameters(folder: Path) -> Iterator[int]:
    """Numbers of each tensor; a byte of MXFP4's blocks holds two."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118  a file, no mapping
                    yield prod(file.get_slice(name).get_shape()) * (2 if name.endswith("_blocks") else 1)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is no safetensors file: {error}") from None
