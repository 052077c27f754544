"""Whether a manifest agrees with itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING

from parity.errors import UsageError
from parity.golden.case import Case, Generation
from parity.golden.fields import Variant
from parity.golden.keeping import ranges
from parity.golden.manifest import Manifest, TensorRow, key
from parity.kv_cache import check_scales
from parity.sampling import from_text, read_sampling, written
from parity.stages import matches

if TYPE_CHECKING:
    pass

TRUTH: Variant = "float32"
REPLICATED = "replicated"
VARIANTS = {"golden": (TRUTH, "bfloat16", "bfloat16.local"), "run": (TRUTH, "bfloat16")}


def refuse_contradictions(manifest: Manifest, path: Path) -> None:
    """Raises:
    UsageError: two parts of the manifest contradict each other; which.
    """
    parts = (
        _case(manifest),
        _sampling(manifest.case),
        _scales(manifest),
        _kept(manifest),
        _generations(manifest),
        _rows(manifest),
        _starts(manifest.tensors),
        _rounds(manifest),
        _floors(manifest),
    )
    for wrong in chain.from_iterable(parts):
        raise UsageError(f"{path} contradicts itself: {wrong}")


def _case(manifest: Manifest) -> Iterator[str]:
    case = manifest.case
    if not case.prompts:
        yield "it has no prompt"
    if case.schedule and (len({*case.schedule}) < 2 or max(case.schedule) != case.k):
        yield f"K = {case.k}, and {', '.join(map(str, case.schedule))} in turn: it is the largest of several"
    if (case.mode == "golden") != (manifest.kind == "golden"):
        yield f"a {manifest.kind} in mode {case.mode}"
    if manifest.kind == "golden" and case.precision != TRUTH:
        yield f"a golden in {case.precision}; its truth is float32"
    for what, names in (("stage", manifest.stages), ("prompt", [prompt.id for prompt in case.prompts])):
        yield from (f"{what} {name} is there {count} times" for name, count in Counter(names).items() if count > 1)
    for number, prompt in enumerate(case.prompts):
        if not prompt.ids:
            yield f"prompt {number} ({prompt.id}) has no token"
        if case.mode == "local" and prompt.generation is not None:
            yield (
                f"prompt {number} ({prompt.id}) generated freely in a local run, "
                "which starts from the golden everywhere"
            )


def _scales(manifest: Manifest) -> Iterator[str]:
    """A golden's caches of another format have scales, one for each layer; a run has none."""
    case, model = manifest.case, manifest.model
    if case.settled and (manifest.kind == "golden" or not case.kv_cache):
        yield "it settles ties of a format that its caches do not keep"
    layers = {"target": model.num_layers, "drafter": model.num_drafter_layers}
    formats = case.kv_cache if manifest.kind == "golden" else ""
    if wrong := check_scales(case.kv_scales, formats, layers):
        yield wrong


def _sampling(case: Case) -> Iterator[str]:
    """Settings in words of which there is one spelling, and random numbers for every prompt; or none of both."""
    if not case.sampling:
        if case.seed or any(prompt.uniforms for prompt in case.prompts):
            yield "it has random numbers or a seed, and says nothing of sampling"
        return
    try:
        if (said := written(read_sampling(case.sampling))) != case.sampling:
            yield f"it samples by {case.sampling}, which is written {said}"
    except UsageError as error:
        yield str(error)
    for number, prompt in enumerate(case.prompts):
        try:
            from_text(prompt.uniforms, case.max_new_tokens, case.k)
        except ValueError as error:
            yield f"prompt {number} ({prompt.id}) has no table of random numbers: {error}"


def _kept(manifest: Manifest) -> Iterator[str]:
    """Of a stage one sketch and one number of best logits, of stages that can be kept so; no ranks, no drawing."""
    case = manifest.case
    if (case.kept or case.positions) and case.sampling:
        yield "it samples, and keeps some stages as less than whole: what tokens are drawn from is needed whole"
    if (case.kept or case.positions) and case.kv_cache:
        yield "its caches are quantised, and it keeps some stages as less than whole: such caches are needed whole"
    try:
        ranges(case.positions)
    except UsageError as error:
        yield str(error)
    found = Counter((one.form, name) for one in case.kept for name in manifest.table if matches(one.stages, name))
    yield from (f"{name} is kept as two of {form}" for (form, name), count in found.items() if count > 1)
    named = {
        stages for stages, name in product({one.stages for one in case.kept}, manifest.table) if matches(stages, name)
    }
    yield from (f"{one.stages} is kept, no stage has that name" for one in case.kept if one.stages not in named)
    if case.kept or case.positions:
        ranked = (row for row in manifest.tensors if row.rank or row.sharding != REPLICATED)
        yield from (f"{row.key} is of ranks, and less than whole" for row in ranked)


def _generations(manifest: Manifest) -> Iterator[str]:
    silent = [number for number, prompt in enumerate(manifest.case.prompts) if prompt.generation is None]
    if manifest.kind == "run" and 0 < len(silent) < len(manifest.case.prompts):
        yield f"prompt {silent[0]} ({manifest.case.prompts[silent[0]].id}) generated nothing freely, others did"
    for number, prompt in enumerate(manifest.case.prompts):
        if prompt.generation is not None:
            wrong = _generation(prompt.generation, manifest.case, manifest.kind == "golden")
            yield from (f"prompt {number} ({prompt.id}) {what}" for what in wrong)


def _generation(told: Generation, case: Case, golden: bool) -> Iterator[str]:
    """What a prompt emitted, round by round; a run's is what a device did, right or wrong."""
    lengths, accepted, emitted = told.acceptance_length, told.accepted_drafts, len(told.emitted)
    if len(lengths) != len(accepted):
        yield f"has {len(lengths)} acceptance lengths and {len(accepted)} counts of accepted drafts"
    if emitted != 1 + sum(lengths):
        yield f"emitted {emitted} tokens, its rounds {1 + sum(lengths)}"
    for round_, (length, drafts) in enumerate(zip(lengths, accepted, strict=False), 1):
        cut, k = drafts != length - 1, case.drafts(round_)
        if length < 1 or drafts > min(length, k) or (golden and (length > k + 1 or (cut and round_ < len(lengths)))):
            yield f"emitted {length} tokens in round {round_} with {drafts} of {k} drafts accepted"
    if told.finish == "length" and emitted < case.max_new_tokens:
        yield f"ends by its budget of {case.max_new_tokens} tokens with {emitted}"
    if golden and emitted > case.max_new_tokens:
        yield f"emitted {emitted} tokens of a budget of {case.max_new_tokens}"


def _rows(manifest: Manifest) -> Iterator[str]:
    """Each row alone, and that none is there twice."""
    prompts, variants, stages = len(manifest.case.prompts), VARIANTS[manifest.kind], {*manifest.stages}
    # A run's axes are what a device did: they are judged.
    golden = manifest.kind == "golden"
    named = manifest.table if golden else {}
    for row in manifest.tensors:
        if row.place[2] not in stages:
            yield f"{row.key} is of a stage that it does not list"
        if row.place[0] >= prompts:
            yield f"{row.key} is of a prompt that is not there: there are {prompts}"
        if len(row.axes) != len(row.shape):
            yield f"{row.key} has axes {list(row.axes)} and shape {list(row.shape)}"
        if row.place[2] in named and row.axes != named[row.place[2]].stage.axes:
            yield f"{row.key} has axes {list(row.axes)}, its stage {list(named[row.place[2]].stage.axes)}"
        if row.variant not in variants:
            yield f"{row.key} is {row.variant} in a {manifest.kind}"
    if len({(row.variant, row.place, row.rank) for row in manifest.tensors}) < len(manifest.tensors):
        counts = Counter((row.variant, row.key, row.rank) for row in manifest.tensors)
        yield f"{counts.most_common(1)[0][0][1]} is there twice"


def _starts(rows: Iterable[TensorRow]) -> Iterator[str]:
    """Rows that continue the round before find it there."""
    rows = tuple(rows)
    continued = [row for row in rows if row.start]
    ends = {(row.variant, row.place, row.rank): row.start + row.shape[0] for row in rows} if continued else {}
    for row in continued:
        prompt, round_, stage = row.place
        if row.start > ends.get((row.variant, (prompt, round_ - 1, stage), row.rank), 0):
            before = key(prompt, max(round_ - 1, 0), stage)
            yield f"{row.key} ({row.variant}) continues {row.start} rows, which {before} does not have"


def _floors(manifest: Manifest) -> Iterator[str]:
    """A floor that a golden has of a stage it has of every prompt and round of it."""
    if manifest.kind != "golden":
        return
    there: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for row in manifest.tensors:
        prompt, round_, stage = row.place
        there.setdefault((stage, row.variant), set()).add((prompt, round_))
    for (stage, variant), places in there.items():
        truth = there.get((stage, TRUTH), set())
        if places != truth:
            prompt, round_ = min(places ^ truth)
            lacking, has = (variant, TRUTH) if (prompt, round_) in truth else (TRUTH, variant)
            yield f"{key(prompt, round_, stage)} has {has} and no {lacking}, which other rounds of the stage have"


def _rounds(manifest: Manifest) -> Iterator[str]:
    """A golden's tensors are of the rounds that its prompts say they took: each of them, and no more."""
    if manifest.kind != "golden":
        return
    there: dict[int, set[int]] = {}
    for row in manifest.tensors:
        if row.variant == TRUTH:
            number, round_, _ = row.place
            there.setdefault(number, set()).add(round_)
    for number, prompt in enumerate(manifest.case.prompts):
        rounds, told = there.get(number, set()), prompt.generation
        if told is not None and (
            len(rounds) != 1 + len(told.acceptance_length) or max(rounds) != len(told.acceptance_length)
        ):
            yield (
                f"prompt {number} ({prompt.id}) takes {len(told.acceptance_length)} rounds behind the prefill, "
                f"there are tensors of {len(rounds)} in all"
            )
