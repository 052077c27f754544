"""A run recorded in pieces: the target captured in one go, the drafter in another, written as one run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from parity.adapters.convert import to_numpy
from parity.arrays import Array
from parity.device_fits import Precision
from parity.errors import UsageError
from parity.golden import shards
from parity.golden.case import Case, Generation, Parted, PromptCase, declared_shown
from parity.golden.provenance import now, producer, with_constants
from parity.golden.sources import reached
from parity.golden.views import DumpView
from parity.golden.writer import DumpWriter
from parity.seam import Description
from parity.shown import with_returned
from parity.stages import PREFILL, ROUND, dataflow
from parity.trace import ForcingTrace

Piece = Mapping[tuple[int, int, str], Any]
"""(prompt, round, full stage name) to the stage's tensor, logical rows only: [R, ...] in the stage's axes."""


def read_piece(dump: DumpView) -> Piece:
    """The tensors of a run folder, whole, to be joined with other pieces."""
    precision = dump.manifest.case.precision
    places = sorted(place[1:] for place in dump.rows if place[0] == precision)
    return {place: dump.contents(precision, *place) for place in places}


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file, bfloat16 as that of ml_dtypes.

    Raises:
        UsageError: it is damaged, or holds a dtype that a run cannot.
    """
    return shards.read(path)


def write_run(
    golden: DumpView,
    out: Path,
    says: Description,
    pieces: Iterable[Piece],
    mode: Literal["chained", "local"] = "chained",
    forced: tuple[str, ...] = (),
    generations: Mapping[int, Generation] | None = None,
) -> Path:
    """Write the pieces as one run over a golden's case; what none of them holds is missing.

    Args:
        says: who computed; its `modules` are compared with the golden's source.
        mode: how they were recorded: local where every stage was started from the golden's input.
        forced: templates of the stages that were replaced by the golden's meanwhile. Where a choice was not and differs
            from the golden's, the sequence parts from it, and what is behind is left out.
        generations: by prompt, what it emitted freely.

    Raises:
        UsageError: two pieces say other values of one place, or a place is none of the golden's pair.
    """
    case, whole = golden.manifest.case, _joined(golden, pieces)
    stages = {stage for _, _, stage in whole}
    precision, prompts = cast(Precision, says.precision), []
    with DumpWriter(out) as writer:
        for number, prompt in enumerate(case.prompts):
            trace = _replayed(golden, number, whole, forced)
            writer.add(number, precision, golden.declared.values(), trace.tensors)
            parted = Parted(round=trace.parted[0], stage=trace.parted[1]) if trace.parted else None
            generation = (generations or {}).get(number)
            prompts.append(
                PromptCase(id=prompt.id, ids=prompt.ids, generation=generation, parted=parted, uniforms=prompt.uniforms)
            )
        writer.finish(
            kind="run",
            stages=[name for name in golden.declared if name in stages],
            created=now(),
            producer=producer(
                says.name, {*reached(says.modules), *says.modules}, ("numpy",), 0, says.versions, says.notes
            ),
            model=with_constants(golden.manifest.model, says.constants),
            case=Case(
                k=case.k,
                max_new_tokens=case.max_new_tokens,
                partial_kv=case.partial_kv,
                kv_cache=case.kv_cache,
                precision=precision,
                mode=mode,
                forced=forced,
                shown=declared_shown(with_returned(says.shown, golden.declared, loop=True)),
                sampling=case.sampling,
                seed=case.seed,
                prompts_digest=case.prompts_digest,
                prompts=tuple(prompts),
            ),
        )
    return out


def _replayed(
    golden: DumpView, prompt: int, whole: Mapping[tuple[int, int, str], Array], forced: tuple[str, ...]
) -> ForcingTrace:
    """One prompt's tensors in the order in which data flows, as far as its sequence is the golden's."""
    names = golden.declared
    replaced = frozenset(name for name, named in names.items() if named.stage.template in forced)
    trace = ForcingTrace(names, lambda round_, stage: golden.contents("float32", prompt, round_, stage), replaced)
    for round_ in sorted({place[1] for place in whole if place[0] == prompt}):
        trace.begin(round_)
        for named in dataflow(names.values(), round_):
            if (prompt, round_, named.name) in whole:
                trace(named.name, whole[prompt, round_, named.name])
    return trace


def _joined(golden: DumpView, pieces: Iterable[Piece]) -> dict[tuple[int, int, str], Array]:
    """All places of all pieces, each once."""
    whole: dict[tuple[int, int, str], Array] = {}
    for piece in pieces:
        for place, value in piece.items():
            array = to_numpy(value)
            _refuse_strange(golden, place, array)
            if place in whole and not _alike(whole[place], array):
                prompt, round_, stage = place
                raise UsageError(f"two pieces say otherwise of {stage} (prompt {prompt}, round {round_})")
            whole[place] = array
    return whole


def _refuse_strange(golden: DumpView, place: tuple[int, int, str], array: Array) -> None:
    prompt, round_, stage = place
    named, prompts = golden.declared.get(stage), len(golden.manifest.case.prompts)
    where = f"{stage} (prompt {prompt}, round {round_})"
    if named is None or not 0 <= prompt < prompts or round_ < 0:
        raise UsageError(f"{where} is no place of {golden.folder}, which has {prompts} prompts")
    if (ROUND if round_ else PREFILL) not in named.stage.when:
        raise UsageError(f"{where}: the stage is not in this kind of round")
    if array.ndim != len(named.stage.axes):
        raise UsageError(f"{where} came with shape {list(array.shape)}; its axes are [{','.join(named.stage.axes)}]")


def _alike(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and np.array_equal(one, other, equal_nan=True)
