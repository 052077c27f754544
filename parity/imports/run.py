"""The run folder of an imported dump: the golden's case, the tensors in our axes, and who made them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden import shards
from parity.golden.aligned import refuse_misaligned
from parity.golden.case import Case, Generation, PromptCase, ShownRecord, declared_shown
from parity.golden.digests import digest_files
from parity.golden.producer import Producer
from parity.golden.provenance import now, with_constants
from parity.golden.ranks import merge_shards
from parity.golden.views import DumpView
from parity.golden.writer import DumpWriter
from parity.imports import READERS
from parity.imports.captured import TorchLoad
from parity.imports.names import NameMap
from parity.imports.placing import Destination, Placed, Placing, arranged, place
from parity.shown import View, there
from parity.stages import TARGET_EMBED, Named


def named_version(reference: str) -> tuple[str, str]:
    """Name and version out of `NAME==VERSION`; twice '' where no reference is named.

    Raises:
        UsageError: one of the two is missing.
    """
    name, _, version = reference.partition("==")
    if reference and not (name and version):
        raise UsageError(f"--reference {reference}: say whose oracle it is and which version, as NAME==VERSION")
    return name, version


def refuse_untrue(array: NDArray[Any], placed: Placed) -> None:
    """Refuse a tensor that is no reference's truth, before it is widened or stored.

    Raises:
        UsageError: numbers that are narrower than float32, or choices that are no integers.
    """
    said = f"--reference: {placed.captured.source}: {placed.captured.name} is {array.dtype}"
    if placed.named.stage.exact:
        if array.dtype.kind not in "iu":
            raise UsageError(f"{said}; {placed.named.name} are integers")
    elif array.dtype not in (np.float32, np.float64):
        raise UsageError(f"{said}; a golden's truth is float32")


def generation(arrays: Mapping[Destination, NDArray[Any]], prompt: int, case: Case) -> Generation:
    """What the reference emitted for a prompt, out of its own tokens, round by round.

    Raises:
        UsageError: the dump lacks the tokens of a round, or ends where the golden with the same tokens does not.
    """

    def tokens(round_: int, stage: str) -> list[int]:
        if not len(arrays.get((prompt, round_, stage, 0), ())):
            where = f"prompt {prompt}, round {round_}"
            raise UsageError(f"--reference: the dump lacks {stage} of {where}, which says what it emitted")
        ids: list[int] = arrays[prompt, round_, stage, 0].tolist()
        return ids

    emitted, lengths, accepted = [int(tokens(0, "target.tokens")[-1])], [], []
    rounds = max((place[1] for place in arrays if place[0] == prompt), default=0)
    for round_ in range(1, rounds + 1):
        fresh, drafts = tokens(round_, "accept.emitted"), tokens(round_, "drafter.draft_tokens")
        emitted += fresh
        lengths.append(len(fresh))
        accepted.append(int(np.cumprod([mine == theirs for mine, theirs in zip(fresh, drafts, strict=False)]).sum()))
    true = case.prompts[prompt].generation
    if true is not None and len(emitted) < len(true.emitted) and tuple(emitted) == true.emitted[: len(emitted)]:
        said = f"--reference: prompt {prompt} ends after {len(emitted)} tokens"
        raise UsageError(f"{said}, of which the golden emits more: rounds are missing")
    return Generation(
        emitted=tuple(emitted),
        acceptance_length=tuple(lengths),
        accepted_drafts=tuple(accepted),
        finish="length" if len(emitted) >= case.max_new_tokens else "eos",
    )


@dataclass(frozen=True)
class ImportRequest:
    """One import: `paths` in the format `source`, by the map `names`, over the golden's case, to the folder `out`.

    `reference` is `NAME==VERSION` of the independent implementation that the dump comes from; '' for a device's run.
    `partial` says that the run shows what the dump holds and no more.
    """

    source: str
    paths: Sequence[Path]
    names: NameMap
    golden: DumpView
    out: Path
    torch_load: TorchLoad
    reference: str = ""
    partial: bool = False


def import_run(request: ImportRequest) -> Placing:
    """Write the folder; what was mapped, and what was not.

    It is a run: files do not prove that no device made them. With a `reference` that the user vouches for it is a
    golden in float32 without floors and without source, to be compared with another golden; it never judges a device.


    Raises:
        UsageError: the dump cannot be read or does not fit the map or the golden's pair.
    """
    for path in request.paths:
        if not path.exists():
            raise UsageError(f"{path} does not exist")
    if request.partial and (request.names.run.shown or request.reference):
        said = "the map declares what is shown" if request.names.run.shown else "a golden is whole"
        raise UsageError(f"--partial: {said}; leave one of the two out")
    View(
        [ShownRecord(stages=glob) for glob in request.names.run.shown], request.golden.declared
    )  # refuses unknown globs
    known = {named.stage.template for named in request.golden.declared.values()}
    for template in request.names.run.forced:
        if template not in known:
            raise UsageError(
                f"--map: forced = {template[:80]!r} is no stage template, as in 'target.layers.{{l}}.experts'"
            )
    placing = place(READERS[request.source](request.paths, request.torch_load), request.names, request.golden)
    producer = _producer(request, placing)
    named = ", ".join(map(str, request.paths))
    refuse_misaligned(request.golden, _embeddings(request, placing), named, request.partial)
    with DumpWriter(request.out) as writer:
        arrays = {spot: _stored(request, spot, one) for spot, one in placing.taken.items()}
        case = _case(request, placing, arrays)
        for prompt in range(len(case.prompts)):
            for rank in range(placing.ranks):
                _write(writer, placing, arrays, case, request.golden.declared, prompt, rank)
        stages = {spot[2] for spot in placing.taken}
        writer.finish(
            kind="golden" if request.reference else "run",
            stages=[name for name in request.golden.declared if name in stages],
            created=now(),
            producer=producer,
            model=with_constants(request.golden.manifest.model, {}),
            case=case,
        )
    return placing


def _case(request: ImportRequest, placing: Placing, arrays: dict[Destination, NDArray[Any]]) -> Case:
    """The golden's case, as the dump ran it."""
    case, made = request.golden.manifest.case, request.names.run
    precision = made.precision or _precision(placing, arrays)
    if request.reference and precision != "float32":
        raise UsageError(f"--reference {request.reference}: the dump is in {precision}; a golden's truth is float32")
    prompts = [
        PromptCase(
            id=one.id,
            ids=one.ids,
            generation=generation(arrays, number, case) if request.reference else None,
            uniforms=one.uniforms,
        )
        for number, one in enumerate(case.prompts)
    ]
    return Case(
        k=case.k,
        max_new_tokens=case.max_new_tokens,
        partial_kv=case.partial_kv,
        kv_cache=case.kv_cache,
        precision=precision,
        mode="golden" if request.reference else made.mode,
        forced=made.forced,
        shown=_shown(request, placing, arrays),
        sampling=case.sampling,
        seed=case.seed,
        prompts_digest=case.prompts_digest,
        prompts=tuple(prompts),
    )


def _shown(
    request: ImportRequest, placing: Placing, arrays: dict[Destination, NDArray[Any]]
) -> tuple[ShownRecord, ...]:
    """What the map declares, or with `partial` what is there."""
    if not request.partial:
        return tuple(ShownRecord(stages=glob) for glob in request.names.run.shown)
    golden = request.golden
    sizes = {spot[:3]: len(_whole(arrays, placing, spot[:3])) for spot in arrays if spot[3] == 0}
    true = {place[1:]: row.full_shape[0] for place, row in golden.rows.items() if place[0] == "float32"}
    return declared_shown(there(sizes, true, golden.declared))


def _embeddings(request: ImportRequest, placing: Placing) -> Iterator[tuple[int, int, NDArray[Any]]]:
    """The rows of every pass's embeddings, of all ranks."""
    spots = [spot for spot in placing.taken if spot[2] == TARGET_EMBED]
    for prompt, round_, _, _ in (spot for spot in spots if spot[3] == 0):
        arrays = {spot: _stored(request, spot, placing.taken[spot]) for spot in spots if spot[:2] == (prompt, round_)}
        yield prompt, round_, _whole(arrays, placing, (prompt, round_, TARGET_EMBED))


def _write(
    writer: DumpWriter,
    placing: Placing,
    arrays: dict[Destination, NDArray[Any]],
    case: Case,
    declared: dict[str, Named],
    prompt: int,
    rank: int,
) -> None:
    """One prompt's tensors of one rank, in the order of rounds and of the stage table."""
    order = {name: number for number, name in enumerate(declared)}
    spots = sorted((s for s in arrays if (s[0], s[3]) == (prompt, rank)), key=lambda s: (s[1], order[s[2]]))
    tensors = {(round_, stage): arrays[prompt, round_, stage, rank] for _, round_, stage, _ in spots}
    sharding = {spot[2]: placing.taken[spot].row.sharding for spot in spots}
    if tensors:
        whole = {(round_, stage): _whole(arrays, placing, (prompt, round_, stage)) for _, round_, stage, _ in spots}
        writer.add(prompt, case.precision, declared.values(), tensors, rank, sharding, whole)


def _whole(arrays: dict[Destination, NDArray[Any]], placing: Placing, spot: tuple[int, int, str]) -> NDArray[Any]:
    """A cache stage or the embeddings of all ranks: what a round changed is said of all alike. Of others rank 0's."""
    first = placing.taken[*spot, 0]
    ranks = range(placing.ranks if first.named.stage.cache or spot[2] == TARGET_EMBED else 1)
    try:
        return merge_shards(
            spot[2], [arrays[*spot, rank] for rank in ranks], first.row.sharding, first.named.stage.axes
        )
    except ValueError:
        raise UsageError(f"{spot[2]}, prompt {spot[0]}, round {spot[1]}: the ranks disagree on their shape") from None


def _stored(request: ImportRequest, spot: Destination, placed: Placed) -> NDArray[Any]:
    """The array as it is stored: its stage's axes, a dtype of the format; float16 widens, which changes no value."""
    array = arranged(placed, spot, request.golden)
    if request.reference:
        refuse_untrue(array, placed)
    array = array.astype(np.float32) if array.dtype == np.float16 else array
    if array.dtype not in shards.DTYPES.values():
        said = f"has dtype {array.dtype}, which the format does not know"
        if array.dtype == np.uint16:
            said += ': where these are the bits of bfloat16, its row of the map says bits = "bfloat16"'
        raise UsageError(f"{placed.captured.source}: {placed.captured.name} {said}")
    return array


def _precision(placing: Placing, arrays: dict[Destination, NDArray[Any]]) -> Literal["float32", "bfloat16"]:
    """float32, the stricter one, unless a number came in bfloat16."""
    inexact = (array.dtype for spot, array in arrays.items() if not placing.taken[spot].named.stage.exact)
    return "bfloat16" if np.dtype(ml_dtypes.bfloat16) in set(inexact) else "float32"


def _producer(request: ImportRequest, placing: Placing) -> Producer:
    """Who made the dump, as far as it says: no modules, but the digest of every file that was read."""
    name, version = named_version(request.reference)
    files = sorted({Path(one.captured.source) for one in placing.taken.values()})
    return Producer(
        name=name or request.names.run.name or request.source,
        versions={"imported from": request.source} | ({name: version} if name else {}),
        modules=(),
        source_digest=digest_files(files),
        threads=0,
        platform="",
    )
