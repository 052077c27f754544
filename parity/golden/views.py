"""What reads a dump sees of it: one small interface, a mark for goldens that may judge, and views of a part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden.case import Generation, PromptCase
from parity.golden.fields import Variant
from parity.golden.keeping import Record, joined
from parity.golden.manifest import Manifest, TensorRow
from parity.reproducing import quoted
from parity.sampling import as_text, from_text
from parity.shown import View
from parity.stages import Named

TensorPlace = tuple[Variant, int, int, str]
"""Variant, prompt number, round number and full stage name of a tensor."""


class DumpView(ABC):
    """A dump to read: a folder (`parity.golden.store.Dump`), or what a view shows of one without copying it.

    Attributes:
        folder: where its tensors come from, for sentences and commands.
        manifest: what was run, which stages were asked for, and one row per tensor.
        declared: every stage of its pair of models by full name, in table order.
        rows: the row of each whole tensor, by its place.
        parts: the rows that it is stored as, one for each rank.
        asked: options of a command that look at it in this way, with a blank in front; '' for most.
        imagined: what the references compute under a hypothesis, whose choices may have another rule.
    """

    imagined = False
    asked = ""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        declared: dict[str, Named],
        rows: Mapping[TensorPlace, TensorRow],
        parts: Mapping[TensorPlace, Sequence[TensorRow]],
    ):
        self.folder, self.manifest, self.declared = folder, manifest, declared
        self.rows, self.parts = rows, parts

    @abstractmethod
    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[Any] | None:
        """The stored rows of a tensor (cache stages: from `start` on), or None where there is none.

        Raises:
            UsageError: its bytes are missing, or do not match the manifest's digest.
        """

    def shards(self, variant: Variant, prompt: int, round_: int, stage: str) -> list[NDArray[Any]]:
        """Each rank's stored rows of a tensor; the whole one where a view has no ranks, none where it is missing.

        Raises:
            UsageError: as `stored`.
        """
        whole = self.stored(variant, prompt, round_, stage)
        return [] if whole is None else [whole]

    def contents(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[Any] | None:
        """The whole tensor: for cache stages the rows of earlier rounds come first.

        Raises:
            UsageError: as `stored`, or rows of an earlier round are missing.
        """
        rows = self.stored(variant, prompt, round_, stage)
        if rows is None:
            return None
        start = self.rows[variant, prompt, round_, stage].start
        parts = [rows]
        while start:
            round_ -= 1
            before = self.stored(variant, prompt, round_, stage)
            if before is None:
                raise UsageError(f"{self.folder}: {stage} continues rows of round {round_}, which are missing")
            below = self.rows[variant, prompt, round_, stage].start
            parts.append(before[: max(start - below, 0)])
            start = min(start, below)
        return np.concatenate(parts[::-1])

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """What is held of a tensor's stored rows, whole or not; None where there is nothing.

        Raises:
            UsageError: as `stored`.
        """
        rows = self.stored(variant, prompt, round_, stage)
        start = self.rows[variant, prompt, round_, stage].start if rows is not None else 0
        return None if rows is None else Record(start + np.arange(len(rows)), rows)

    def record_from(self, place: TensorPlace, start: int) -> Record | None:
        """As `record`, with the rows of earlier rounds from this one on.

        Raises:
            UsageError: as `contents`.
        """
        variant, prompt, round_, stage = place
        record = self.record(*place)
        if record is None:
            return None
        parts, low = [record], self.rows[place].start
        while low > start:
            round_ -= 1
            before = self.record(variant, prompt, round_, stage)
            if before is None:
                raise UsageError(f"{self.folder}: {stage} continues rows of round {round_}, which are missing")
            parts.append(before.take(before.index < low))
            low = min(low, self.rows[variant, prompt, round_, stage].start)
        whole = joined(parts[::-1])
        return whole.take(whole.index >= start)

    @property
    def keeps(self) -> bool:
        """Whether it keeps some stages, or rows, as less than whole."""
        return bool(self.manifest.case.kept or self.manifest.case.positions)

    def variants(self) -> set[str]:
        """The variants that its manifest lists."""
        return {row.variant for row in self.manifest.tensors}

    @cached_property
    def view(self) -> View:
        """What its device declares to show.

        Raises:
            UsageError: that is no stage of this pair.
        """
        return View(self.manifest.case.shown, self.declared)

    @property
    def forced(self) -> frozenset[str]:
        """Full names of the stages that the golden's tensors replaced while this ran, in the passes that show them."""
        templates = {*self.manifest.case.forced}
        return frozenset(
            name for name, named in self.declared.items() if named.stage.template in templates and self.view.shows(name)
        )

    @property
    def followed(self) -> frozenset[str]:
        """Full names of the stages whose golden values it continued with: those forced, and all tokens.

        The tokens are the golden's even where nothing can force them: what comes behind others is not recorded.
        """
        return self.forced | {
            name for name, named in self.declared.items() if named.stage.forced and named.layer is None
        }

    def follows(self, round_: int, stage: str) -> bool:
        """Whether it continued with the golden's value of a stage in a round: one that it does not show there has its
        own."""
        kind, layer = self.declared[stage].stage, self.declared[stage].layer
        replaced = kind.template in self.manifest.case.forced and self.view.rows(stage, round_) is not None
        return replaced or (kind.forced and layer is None)

    @property
    def sides(self) -> tuple[DumpView, ...]:
        """The dumps whose structure is judged: this one."""
        return (self,)

    @property
    def settled(self) -> bool:
        """Whether the golden that it is compared with is what it is judged against: `parity.compare.basis.settle`."""
        return False

    @property
    def command(self) -> str:
        """How a command names this dump."""
        return quoted(self.folder)


class TrustedGolden(DumpView):
    """A golden that may judge; whatever judges takes this type.

    There is one source: `parity.golden.trust.trusted`, which checks a golden once. The rest is made of such a one: a
    part of it, or what the references compute in its place.
    """


class PromptSlice(DumpView):
    """One prompt of a golden or of a run, cut to its first rounds; the prompt is number 0.

    The token budget of a prompt that is cut is what the kept rounds emitted, so that a device that is given this budget
    ends where the view ends. A prompt kept to its end keeps its budget: one that an end token ended has tokens left,
    and a device that continues behind it shows that only if it may.

    Args:
        whole: the dump to cut.
        prompt: the prompt's number in it.
        rounds: verify rounds to keep; fewer where the prompt ended before.
        budget: token budget of the view, where it is not that.
    """

    def __init__(self, whole: DumpView, prompt: int, rounds: int, budget: int | None = None):
        self.whole, self.prompt = whole, prompt
        rows: dict[TensorPlace, TensorRow] = {
            (variant, 0, round_, stage): row
            for (variant, number, round_, stage), row in whole.rows.items()
            if number == prompt and round_ <= rounds
        }
        parts = {place: whole.parts[self._in_whole(place)] for place in rows}
        case = whole.manifest.case
        cut = _cut(case.prompts[prompt], rounds)
        if budget is None:
            budget = case.max_new_tokens
            if cut.generation is not None and cut != case.prompts[prompt]:
                budget = len(cut.generation.emitted)
        if cut.uniforms and budget < case.max_new_tokens:  # as many rounds of numbers as the view has tokens
            numbers = from_text(cut.uniforms, case.max_new_tokens, case.k)
            cut = cut.model_copy(update={"uniforms": as_text(numbers[:budget])})
        case = case.model_copy(update={"prompts": (cut,), "max_new_tokens": budget})
        manifest = whole.manifest.model_copy(update={"case": case, "tensors": tuple(rows.values())})
        super().__init__(whole.folder, manifest, whole.declared, rows, parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[Any] | None:
        """The whole dump's rows, by this view's prompt number."""
        place = variant, prompt, round_, stage
        return self.whole.stored(*self._in_whole(place)) if place in self.rows else None

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """The whole dump's, by this view's prompt number."""
        place = variant, prompt, round_, stage
        return self.whole.record(*self._in_whole(place)) if place in self.rows else None

    def shards(self, variant: Variant, prompt: int, round_: int, stage: str) -> list[NDArray[Any]]:
        """The whole dump's, by this view's prompt number."""
        place = variant, prompt, round_, stage
        return self.whole.shards(*self._in_whole(place)) if place in self.rows else []

    @cached_property
    def view(self) -> View:
        """As the whole dump."""
        return self.whole.view

    @property
    def forced(self) -> frozenset[str]:
        """As the whole dump."""
        return self.whole.forced

    def follows(self, round_: int, stage: str) -> bool:
        """As the whole dump."""
        return self.whole.follows(round_, stage)

    @property
    def settled(self) -> bool:
        """As the whole dump."""
        return self.whole.settled

    def _in_whole(self, place: TensorPlace) -> TensorPlace:
        variant, _, round_, stage = place
        return variant, self.prompt, round_, stage


class GoldenSlice(PromptSlice, TrustedGolden):
    """One prompt of a golden that may judge: it may as well. See `PromptSlice`."""

    def __init__(self, whole: TrustedGolden, prompt: int, rounds: int, budget: int | None = None):
        super().__init__(whole, prompt, rounds, budget)


class JoinedSlices(DumpView):
    """Dumps of one prompt each as one dump of so many prompts, in this order."""

    def __init__(self, slices: Sequence[DumpView]):
        self.slices, first = slices, slices[0]
        rows: dict[TensorPlace, TensorRow] = {}
        parts: dict[TensorPlace, Sequence[TensorRow]] = {}
        for number, view in enumerate(slices):
            for (variant, _, round_, stage), row in view.rows.items():
                rows[variant, number, round_, stage] = row
                parts[variant, number, round_, stage] = view.parts[variant, 0, round_, stage]
        prompts = tuple(view.manifest.case.prompts[0] for view in slices)
        case = first.manifest.case.model_copy(update={"prompts": prompts})
        manifest = first.manifest.model_copy(update={"case": case, "tensors": tuple(rows.values())})
        super().__init__(first.folder, manifest, first.declared, rows, parts)

    def stored(self, variant: Variant, prompt: int, round_: int, stage: str) -> NDArray[Any] | None:
        """The rows of the slice of this number."""
        return self.slices[prompt].stored(variant, 0, round_, stage)

    def record(self, variant: Variant, prompt: int, round_: int, stage: str) -> Record | None:
        """That of the slice of this number."""
        return self.slices[prompt].record(variant, 0, round_, stage)

    def shards(self, variant: Variant, prompt: int, round_: int, stage: str) -> list[NDArray[Any]]:
        """Those of the slice of this number."""
        return self.slices[prompt].shards(variant, 0, round_, stage)

    @cached_property
    def view(self) -> View:
        """As the slices: one device's."""
        return self.slices[0].view

    @property
    def forced(self) -> frozenset[str]:
        """As the slices."""
        return self.slices[0].forced

    def follows(self, round_: int, stage: str) -> bool:
        """As the slices."""
        return self.slices[0].follows(round_, stage)

    @property
    def settled(self) -> bool:
        """As the slices."""
        return all(view.settled for view in self.slices)


class JoinedGoldens(JoinedSlices, TrustedGolden):
    """Goldens of one prompt each that may judge, as one that may."""

    def __init__(self, slices: Sequence[TrustedGolden]):
        super().__init__(slices)
        self.imagined = any(one.imagined for one in slices)


def _cut(prompt: PromptCase, rounds: int) -> PromptCase:
    """The prompt with what its first rounds emitted."""
    whole = prompt.generation
    if whole is None:
        return prompt
    lengths = whole.acceptance_length[:rounds]
    cut = Generation(
        emitted=whole.emitted[: 1 + sum(lengths)],
        acceptance_length=lengths,
        accepted_drafts=whole.accepted_drafts[:rounds],
        finish=whole.finish if lengths == whole.acceptance_length else "length",
    )
    return prompt.model_copy(update={"generation": cut})
