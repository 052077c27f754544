"""Smaller goldens: what of a dump is kept, as somebody asks for it, and a golden that is there already made smaller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.golden.case import Case, KeptStages
from parity.golden.consistent import VARIANTS
from parity.golden.fields import Variant
from parity.golden.keeping import Keeping, ranges
from parity.golden.manifest import Manifest
from parity.golden.views import DumpView
from parity.golden.writer import DumpWriter
from parity.stages import Named, inputs, select

BEST = 64
"""Logits of a row that are kept beside its sketch where nothing else is said: enough for every choice of the tiny pair
and gpt-oss that a rounding can tip, and for its log-sum-exp nothing is left out."""


@dataclass(frozen=True)
class Smaller:
    """What is kept: a sketch of N numbers a row by a seed, logits `whole` or `top:K`, positions of the prompts.

    Logits are `top:64` beside a sketch where nothing is said, whole otherwise.
    """

    sketch: int | None = None
    sketch_seed: int | None = None
    logits: str = ""
    positions: str = ""

    def kept(self) -> tuple[KeptStages, ...]:
        """As a manifest has it.

        Raises:
            UsageError: a number is out of range, the logits are written otherwise, or a seed is of no sketch.
        """
        ranges(self.positions)
        if self.sketch_seed is not None and not self.sketch:
            raise UsageError("--sketch-seed goes with --sketch N")
        if self.sketch is not None and not 1 <= self.sketch <= limits.SKETCH:
            raise UsageError(f"--sketch {self.sketch}: a row's sketch has 1 to {limits.SKETCH} numbers")
        count = self._best()
        kept = (
            [KeptStages(stages="*", form="sketch", numbers=self.sketch, seed=self.sketch_seed or 0)]
            if self.sketch
            else []
        )
        return (*kept, *([KeptStages(stages="*.logits", form="top", numbers=count)] if count else []))

    def _best(self) -> int:
        """K of `top:K`; 0 for whole logits."""
        said = self.logits or (f"top:{BEST}" if self.sketch else "whole")
        found = re.fullmatch("top:([0-9]{1,6})", said)
        if said != "whole" and not (found and 1 <= int(found[1]) <= limits.SKETCH):
            raise UsageError(f"--logits {said[:40]}: it is whole, or top:K with K of 1 to {limits.SKETCH}")
        return int(found[1]) if found else 0

    @classmethod
    def of(cls, case: Case) -> Smaller:
        """What a dump was asked to keep.

        Raises:
            UsageError: it says so in a way that no option does.
        """
        sketched = next((one for one in case.kept if one.form == "sketch"), None)
        top = next((one.numbers for one in case.kept if one.form == "top"), 0)
        found = cls(
            sketch=sketched.numbers if sketched else None,
            sketch_seed=sketched.seed if sketched else None,
            logits=f"top:{top}" if top else "whole",
            positions=case.positions,
        )
        if {*found.kept()} != {*case.kept}:
            raise UsageError("what it keeps of its stages is not what the options of `parity dump-golden` say")
        return found

    def beside(self, golden: DumpView) -> Smaller:
        """The same for a run over a golden: by the golden's seed, where it has sketches and none is named."""
        seeds = [one.seed for one in golden.manifest.case.kept if one.form == "sketch"]
        return replace(self, sketch_seed=seeds[0]) if self.sketch and self.sketch_seed is None and seeds else self


def smaller_golden(golden: DumpView, out: Path, asked: Smaller, stages: tuple[str, ...] = ()) -> Path:
    """Write a golden that is there, whole, as a smaller one: the same as its reference would dump with these options.

    Args:
        stages: globs of what is kept at all; everything where empty. Choices and their scores always are.

    Raises:
        UsageError: it is no golden, less than whole itself, or `asked` does not fit.
    """
    whole = golden.manifest
    if whole.kind != "golden" or golden.keeps:
        raise UsageError(
            f"{golden.folder} is {'a run' if whole.kind == 'run' else 'smaller already'}: a whole golden can be"
        )
    if unknown := [name for name in whole.stages if name not in golden.declared]:
        raise UsageError(f"{golden.folder} lists {unknown[0]}, which is no stage of its pair")
    kept = asked.kept()
    if kept and whole.case.sampling:
        raise UsageError(f"{golden.folder} samples: what its tokens are drawn from is needed whole")
    if whole.case.kv_cache:
        raise UsageError(f"{golden.folder} has quantised caches: what they hold is needed whole")
    case = whole.case.model_copy(update={"kept": kept, "positions": asked.positions})
    names = [golden.declared[name] for name in whole.stages if name in _wanted(golden, stages)]
    lengths = [len(prompt.ids) for prompt in case.prompts]
    with DumpWriter(out, keep=Keeping(kept, asked.positions, golden.declared), lengths=lengths) as writer:
        for prompt in range(len(lengths)):
            truth = dict(_tensors(golden, "float32", prompt, names))
            writer.add(prompt, "float32", names, truth)
            for variant in VARIANTS["golden"][1:]:
                if tensors := dict(_tensors(golden, variant, prompt, names)):
                    writer.add(prompt, variant, names, tensors, truth=truth)
        _finish(writer, whole, case, names)
    return out


def _finish(writer: DumpWriter, whole: Manifest, case: Case, names: list[Named]) -> None:
    writer.finish(
        kind="golden",
        stages=[named.name for named in names],
        created=whole.created,
        producer=whole.producer,
        model=whole.model,
        case=case,
        derived=whole.derived,
    )


def _wanted(golden: DumpView, stages: tuple[str, ...]) -> set[str]:
    """The stages of these globs, and the choices with what they are judged by."""
    forced = [named for name, named in golden.declared.items() if named.stage.forced and name in golden.manifest.stages]
    scores = {source for named in forced for source in inputs(named, golden.declared)}
    return {*select(stages, golden.manifest.stages)} | {named.name for named in forced} | scores


def _tensors(
    golden: DumpView, variant: Variant, prompt: int, names: list[Named]
) -> Iterator[tuple[tuple[int, str], NDArray[Any]]]:
    """The whole tensors of a prompt, in the order they were written."""
    wanted = {named.name for named in names}
    for found, number, round_, stage in golden.rows:
        if (found, number) == (variant, prompt) and stage in wanted:
            whole = golden.contents(variant, prompt, round_, stage)
            if whole is not None:
                yield (round_, stage), whole
