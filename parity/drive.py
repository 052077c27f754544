"""Driving a device over a golden's prompts, round by round, and writing down what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from parity.batching import SAMPLE, Script, VerbCall, perform, performed
from parity.errors import DeviceFailed, ParityError, UsageError
from parity.families import BLOCK, TAPS, family_of
from parity.golden.case import Case, Generation, Parted, PromptCase, declared_shown
from parity.golden.fields import Mode
from parity.golden.keeping import Keeping
from parity.golden.provenance import now, producer, with_constants
from parity.golden.smaller import Smaller
from parity.golden.trust import device_modules
from parity.golden.views import DumpView
from parity.golden.writer import DumpWriter
from parity.grid import Grid, grids
from parity.layers import Layers, run_layers, within
from parity.looping import drive_loop, generate_loop, token_ids
from parity.progress import Progress, quiet
from parity.raised import as_parity_error
from parity.seam import UNWATCHED, Description, Device, Layered, Looping, Tap, VaryingK
from parity.shown import View, with_returned
from parity.sketch import Sketched
from parity.stages import (
    ACCEPT_EMITTED,
    ACCEPT_LENGTH,
    DRAFT_TOKENS,
    DRAFTER_LOGITS,
    TARGET_LOGITS,
    TARGET_TOKENS,
    VERIFY_LOGITS,
    VERIFY_TOKENS,
    Named,
    matches,
    select,
)
from parity.trace import ForcingTrace, forced_names

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class RunRequest:
    """One run of a device over a golden.

    `stages` are globs; `free` asks for a free run as well (chained only): without one the run says nothing of it.
    `device_name` is what was given to `--device`, so that the factory's source counts as the device's. `layers` are the
    target's layers that are run alone, one after the other, by a `parity.seam.Layered`; a local run. `smaller` is what
    is kept of its tensors.
    """

    device: Device | Layered
    golden: DumpView
    mode: Mode
    stages: Sequence[str]
    out: Path
    free: bool = True
    progress: Progress = quiet
    device_name: str = ""
    layers: Layers | None = None
    smaller: Smaller = field(default_factory=Smaller)

    def __post_init__(self) -> None:
        if (self.layers is None) == isinstance(self.device, Layered):
            raise ValueError("a parity.seam.Layered runs some layers, any other device runs whole")


def run_device(request: RunRequest) -> Path:
    """Drive the device over every prompt of the golden and write a run folder.

    Stage tensors are taken with the golden's tokens forced (chained) or every stage forced (local).
    What the device emits freely is measured in a run of its own, with the chained one.

    Raises:
        UsageError: the device's shapes are not the golden's, or a stage glob matches nothing.
    """
    golden, says = request.golden, request.device.describe()
    precision = _precision(says)
    loop = isinstance(request.device, Looping)
    _same_shapes(golden, says, loop)
    case, names = golden.manifest.case, golden.declared
    wanted = set(within(request.layers, select(request.stages, golden.manifest.stages), names))
    if request.layers:
        request.layers.refuse_missing(golden)
        if not wanted:
            raise UsageError(f"--stage: none of these stages is of target layers {request.layers}")
    elif case.sampling:  # what tokens are drawn from judges them
        wanted |= {TARGET_LOGITS, VERIFY_LOGITS, DRAFTER_LOGITS} & {*golden.manifest.stages}
    stages = [named for name, named in names.items() if name in wanted]
    if request.mode == "local" and not request.layers:
        _all_stages(golden)
    shown = with_returned(says.shown, names, loop)
    view = View(shown, names)
    forced, ties = forced_of(request.mode, says, view), ties_of(golden, says, view, request.mode)
    asked = request.smaller.beside(golden)
    kept = asked.kept()
    if (kept or asked.positions) and (case.sampling or case.kv_cache):
        why = "samples: what tokens are drawn from" if case.sampling else "has quantised caches: what they hold"
        raise UsageError(f"{golden.folder} {why} is kept whole")
    keep = Keeping(kept, asked.positions, names) if kept or asked.positions else None
    with DumpWriter(request.out, keep=keep, lengths=[len(prompt.ids) for prompt in case.prompts]) as writer:
        prompts: dict[int, PromptCase] = {}
        for number, trace, generation in _driven(request, names, forced, wanted.__contains__, ties, keep):
            _refuse_undeclared(says.name, trace, view)
            _write(writer, number, precision, stages, trace)
            parted = Parted(round=trace.parted[0], stage=trace.parted[1]) if trace.parted else None
            prompt = case.prompts[number]
            prompts[number] = PromptCase(
                id=prompt.id, ids=prompt.ids, generation=generation, parted=parted, uniforms=prompt.uniforms
            )
        request.progress(len(case.prompts), len(case.prompts), "")
        writer.finish(
            kind="run",
            stages=[named.name for named in stages if view.shows(named.name)],
            created=now(),
            producer=producer(
                says.name,
                device_modules(request.device, says.modules, request.device_name, golden.manifest.producer),
                ("numpy",),
                0,
                says.versions,
                request.device.describe().notes,  # once more: what it has compiled shows at the end
            ),
            model=with_constants(golden.manifest.model, says.constants),
            case=Case(
                k=case.k,
                schedule=case.schedule,
                max_new_tokens=case.max_new_tokens,
                partial_kv=case.partial_kv,
                kv_cache=case.kv_cache,
                settled=tuple({names[name].stage.template: None for name in ties}),
                precision=precision,
                mode=request.mode,
                forced=tuple({names[name].stage.template: None for name in names if name in forced}),
                shown=declared_shown(shown),
                lanes=says.lanes,
                layers=(request.layers.first, request.layers.last) if request.layers else None,
                sampling=case.sampling,
                seed=case.seed,
                kept=kept,
                positions=asked.positions,
                prompts_digest=case.prompts_digest,
                prompts=tuple(prompts[number] for number in sorted(prompts)),
            ),
        )
    return request.out


def _driven(
    request: RunRequest,
    names: Mapping[str, Named],
    forced: frozenset[str],
    keep: Callable[[str], bool],
    ties: Mapping[str, Grid],
    keeping: Keeping | None,
) -> Iterator[tuple[int, ForcingTrace, Generation | None]]:
    """Every prompt's number, trace and free generation; as they end where the device runs several at once."""
    case, traces = request.golden.manifest.case, dict[int, ForcingTrace]()

    def make_trace(number: int) -> ForcingTrace:
        traces[number] = ForcingTrace(names, truth_of(request.golden, number), forced, keep, ties, keeping)
        return traces[number]

    if request.layers:
        alone = cast(Layered, request.device)
        with _device_errors(alone.describe().name, case, traces):
            for number, trace in run_layers(alone, request.golden, request.layers, make_trace, request.progress):
                yield number, trace, None
        return
    device = cast(Device, request.device)

    def script(number: int) -> Script[Generation | None]:
        prompt = case.prompts[number]
        request.progress(number, len(case.prompts), prompt.id)
        trace = make_trace(number)
        alone = prompt.ids, case.max_new_tokens
        drafts = case.drafts if case.schedule else None
        free, generation = request.free and request.mode == "chained", None
        if sampled := case.sampled(number):
            yield VerbCall(SAMPLE, sampled, untapped)
        # In turn: what a device does in every second sequence alone is recorded of every second prompt.
        if free and number % 2:
            generation = yield from free_rounds(device, *alone, drafts)
        yield from forced_rounds(device, *alone, trace, len(prompt.generated.acceptance_length), drafts)
        if free and not number % 2:
            generation = yield from free_rounds(device, *alone, drafts)
        if sampled:
            yield VerbCall(SAMPLE, (None, sampled[1]), untapped)
        return generation

    ended = performed(device, ((number, script(number)) for number in range(len(case.prompts))))
    while True:
        with _device_errors(device.describe().name, case, traces):
            found = next(ended, None)
        if found is None:
            return
        number, generation = found
        yield number, traces.pop(number), generation


def forced_of(mode: Mode, says: Description, view: View) -> frozenset[str]:
    """What is forced of a device: of what it shows, a stage in all layers or in none, so that a run can say it."""
    names = view.declared
    forced = {name for name in forced_names(mode, names) if view.shows(name)}
    free = {names[name].stage.template for name in forced if not any(matches(glob, name) for glob in says.forcible)}
    return frozenset(name for name in forced if names[name].stage.template not in free)


def ties_of(golden: DumpView, says: Description, view: View, mode: Mode = "chained") -> dict[str, Grid]:
    """Of the stages that a device shows, and continues with what comes back of, those whose ties are settled.

    In a chained bfloat16 run ties are no more than noise: the golden's floors have as many.
    """
    if says.precision != "float32" and mode == "chained":
        return {}
    stored = {name: golden.declared[name] for name in golden.manifest.stages if name in golden.declared}
    found = grids(golden.manifest.case, stored, "layers")
    return {
        name: grid
        for name, grid in found.items()
        if view.shows(name) and any(matches(glob, name) for glob in says.forcible)
    }


def _refuse_undeclared(name: str, trace: ForcingTrace, view: View) -> None:
    """Raises:
    UsageError: the device hands over what it does not declare as shown: nobody would judge it.
    """
    for round_, stage in (*trace.tensors, *trace.sketches):
        if not view.rows(stage, round_):
            raise UsageError(f"device {name} hands over {stage} in round {round_}, which it does not declare as shown")


def _write(writer: DumpWriter, prompt: int, precision: Precision, stages: Sequence[Named], trace: ForcingTrace) -> None:
    """One prompt's tensors, rank by rank where the device has ranks; what they share is rank 0's."""
    sharding = {stage: how for (_, stage), (how, _) in trace.shards.items()}
    for rank in range(max((len(shards) for _, shards in trace.shards.values()), default=1)):
        tensors: dict[tuple[int, str], NDArray[Any] | Sketched]
        tensors = {place: shards[rank] for place, (_, shards) in trace.shards.items()}
        tensors = tensors if rank else {**trace.tensors, **trace.sketches, **tensors}
        writer.add(prompt, precision, stages, tensors, rank, sharding, trace.tensors)


@contextmanager
def _device_errors(name: str, case: Case, traces: Mapping[int, ForcingTrace]) -> Iterator[None]:
    """A device that breaks down gives no evidence: inconclusive, naming where it was in the prompts that it runs."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failed = error if isinstance(error, ParityError) else as_parity_error(name, "what it handed back", error)
        if isinstance(failed, DeviceFailed) and not failed.place:
            at = (f"prompt {case.prompts[number].id}, round {trace.round}" for number, trace in traces.items())
            failed.place = " and ".join(at)
        raise failed from (error if failed is not error else error.__cause__)


Drafts = Callable[[int], int]
"""K of a round: 1, 2, …"""


def drafted(device: Device, tap: Tap, round_: int, drafts: Drafts | None) -> np.ndarray:
    """A round's draft; a device is told its K where that changes between rounds."""
    return device.draft(tap) if drafts is None else cast(VaryingK, device).draft(tap, drafts(round_))


def forced_rounds(
    device: Device, ids: Sequence[int], budget: int, trace: ForcingTrace, rounds: int, drafts: Drafts | None = None
) -> Script[None]:
    """One prompt through prefill and this many rounds; the trace decides what is forced.

    What a verb returns is handed to the trace here, where the device has not done so. It ends where the sequence parts
    from the golden's. A loop that cannot be split (`parity.seam.Looping`) runs as it is.
    """
    if isinstance(device, Looping):
        return drive_loop(device, ids, budget, trace)
    says = device.describe()
    trace.begin(0)
    trace.returned(TARGET_TOKENS, [(yield VerbCall("prefill", (ids, budget), trace))])
    for round_ in range(1, rounds + 1):
        if trace.parted:
            return
        trace.begin(round_)
        asked = None if drafts is None else drafts(round_)
        chosen = trace.returned(DRAFT_TOKENS, (yield _draft(trace, asked)))
        _refuse_other_k(says, len(ids) + budget, len(chosen), asked)
        chosen = chosen if drafts is None else trace.as_many(DRAFT_TOKENS, chosen)
        tokens = trace.returned(VERIFY_TOKENS, (yield VerbCall("verify", (chosen,), trace)))
        emitted = yield VerbCall("commit", (chosen, tokens), trace)
        trace.returned(ACCEPT_LENGTH, [len(emitted)])
        trace.returned(ACCEPT_EMITTED, emitted)


def free_rounds(device: Device, ids: Sequence[int], budget: int, drafts: Drafts | None = None) -> Script[Generation]:
    """One prompt until EOS or the budget, the device choosing freely; what it emitted."""
    if isinstance(device, Looping):
        return generate_loop(device, ids, budget, untapped)
    says = device.describe()
    emitted = token_ids([(yield VerbCall("prefill", (ids, budget), untapped))])
    lengths: list[int] = []
    accepted: list[int] = []
    while emitted[-1] not in says.eos and len(emitted) < budget:
        asked = None if drafts is None else drafts(len(lengths) + 1)
        own = yield _draft(untapped, asked)
        _refuse_other_k(says, len(ids) + budget, len(own), asked)
        tokens = yield VerbCall("verify", (own,), untapped)
        fresh = token_ids((yield VerbCall("commit", (own, tokens), untapped)))
        if not fresh:
            raise UsageError(f"device {says.name} emitted nothing in round {len(lengths) + 1}")
        matching = np.cumprod([a == b for a, b in zip(fresh, own, strict=False)])
        emitted += fresh
        lengths.append(len(fresh))
        accepted.append(int(matching.sum()))
    return Generation(
        emitted=tuple(emitted),
        acceptance_length=tuple(lengths),
        accepted_drafts=tuple(accepted),
        finish="eos" if emitted[-1] in says.eos else "length",
    )


def _draft(tap: Tap, asked: int | None) -> VerbCall:
    return VerbCall("draft", (), tap, () if asked is None else (asked,))


def _refuse_other_k(says: Description, positions: int, drafted: int, asked: int | None) -> None:
    """A round has as many drafts as the device describes, or as it was asked for, where its caches have room for them.

    Raises:
        DeviceFailed: it has another number of them.
    """
    due = says.k if asked is None else asked
    fewer = family_of(says.family).fewer and drafted < due
    if drafted != due and not fewer and positions + due <= says.max_positions:
        said = "it was asked for" if asked is not None else "it describes as its K (`Description.k`)"
        raise DeviceFailed(says.name, "draft", f"it drafted {drafted} tokens in place of the {due} that {said}")


def generate(device: Device, ids: Sequence[int], budget: int, drafts: Drafts | None = None) -> Generation:
    """Run `free_rounds` alone."""
    return perform(device, free_rounds(device, ids, budget, drafts))


untapped = UNWATCHED
"""The tap of a free run. It says that nobody looks, so that what is judged is what a user is served."""


def truth_of(golden: DumpView, prompt: int) -> Callable[[int, str], np.ndarray | None]:
    return lambda round_, stage: golden.contents("float32", prompt, round_, stage)


def _precision(says: Description) -> Precision:
    """The precision that a device describes.

    Raises:
        UsageError: it is none that a run can be in.
    """
    for precision in get_args(Precision):
        if says.precision == precision:
            return cast(Precision, precision)
    raise UsageError(f"device {says.name} describes its precision as {says.precision!r}; it is float32 or bfloat16")


def _same_shapes(golden: DumpView, says: Description, loop: bool) -> None:
    model, case = golden.manifest.model, golden.manifest.case
    for what, device, reference in (
        ("target layers", says.num_layers, model.num_layers),
        ("drafter layers", says.num_drafter_layers, model.num_drafter_layers),
        ("drafts a round (K)", says.k, case.k),
        ("as its partial KV", says.partial_kv or "none", case.partial_kv or "none"),
        ("as the format of its caches", says.kv_cache or "none", case.kv_cache or "none"),
    ):
        if device != reference:
            raise UsageError(f"device {says.name} has {device} {what}, the golden {golden.folder} has {reference}")
    read = model.target.constants.get("eos_token_id", ())
    if missing := sorted({*(read if isinstance(read, tuple) else (read,))} - {*says.eos}):
        raise UsageError(
            f"device {says.name} ends no generation at {', '.join(map(str, missing))} (`Description.eos`), the golden "
            f"{golden.folder} does"
        )
    if case.schedule and (loop or not says.varies_k):
        said = ", ".join(map(str, case.schedule))
        raise UsageError(
            f"device {says.name} drafts {says.k} tokens in every round (`Description.varies_k`), the golden "
            f"{golden.folder} {said} in turn"
        )
    _samples(golden, says, loop)
    longest = max(case.prompts, key=lambda prompt: len(prompt.ids))
    need = len(longest.ids) + case.max_new_tokens + case.k
    if need > says.max_positions:
        raise UsageError(
            f"device {says.name} has {says.max_positions} positions; prompt {longest.id} of the golden {golden.folder} "
            f"needs {need}: {len(longest.ids)} tokens, {case.max_new_tokens} new ones and {case.k} drafts"
        )
    has = family_of(model.family).has
    fits = says.family == model.family if says.family else TAPS in has and BLOCK not in has
    if not fits:
        said = f"drafts as {says.family}" if says.family else "does not say its family (`Description.family`)"
        raise UsageError(f"device {says.name} {said}, the golden {golden.folder} is of a {model.family} drafter")


def _samples(golden: DumpView, says: Description, loop: bool) -> None:
    """A golden that samples is for a device that can be given its settings and its random numbers."""
    lacks = {
        "does not sample by given numbers (`Description.samples`)": not says.samples,
        "samples by random numbers of its own (`Description.own_numbers`)": says.own_numbers,
        "runs its loop in one piece, which cannot be given numbers": loop,
    }
    for what, holds in lacks.items():
        if golden.manifest.case.sampling and holds:
            raise UsageError(f"device {says.name} {what}; the golden {golden.folder} samples")


def _all_stages(golden: DumpView) -> None:
    if golden.keeps:
        raise UsageError(
            f"{golden.folder} keeps some of its tensors as less than whole; a local comparison starts every stage from "
            "the golden's input: run over a whole golden of the same case, and compare the run with this one"
        )
    missing = [name for name in golden.declared if name not in golden.manifest.stages]
    if missing:
        raise UsageError(
            f"{golden.folder} lacks {missing[0]} and {len(missing) - 1} more stages; a local comparison starts every "
            "stage from the golden's input: dump it without --stage"
        )
