"""Driving a device over a golden's prompts and writing down what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from parity.batching import SAMPLE, Script, VerbCall, performed
from parity.device_fits import Precision
from parity.errors import DeviceFailed, ParityError, UsageError
from parity.golden.case import Case, Generation, Parted, PromptCase, declared_shown
from parity.golden.producer import Producer
from parity.golden.provenance import now, producer, with_constants
from parity.golden.trust import device_modules
from parity.golden.writer import DumpWriter
from parity.layers import run_layers
from parity.raised import as_parity_error
from parity.rounds import Drafts, forced_rounds, free_rounds, untapped
from parity.run_request import RunPlan, RunRequest, planned, truth_of
from parity.seam import Description, Device, Layered
from parity.shown import View
from parity.sketch import Sketched
from parity.stages import Named
from parity.trace import ForcingTrace


def run_device(request: RunRequest) -> Path:
    """Drive the device over every prompt of the golden and write a run folder.

    Stage tensors are taken with the golden's tokens forced (chained) or every stage forced (local).
    What the device emits freely is measured in a run of its own, with the chained one.

    Raises:
        UsageError: the device's shapes are not the golden's, or a stage glob matches nothing.
    """
    golden = request.golden
    case, plan = golden.manifest.case, planned(request)
    with DumpWriter(request.out, keep=plan.keeping, lengths=[len(prompt.ids) for prompt in case.prompts]) as writer:
        prompts: dict[int, PromptCase] = {}
        for number, trace, generation in _driven(request, plan):
            _refuse_undeclared(plan.says.name, trace, plan.view)
            _write(writer, number, plan.precision, plan.stages, trace)
            parted = Parted(round=trace.parted[0], stage=trace.parted[1]) if trace.parted else None
            prompt = case.prompts[number]
            prompts[number] = PromptCase(
                id=prompt.id, ids=prompt.ids, generation=generation, parted=parted, uniforms=prompt.uniforms
            )
        request.progress(len(case.prompts), len(case.prompts), "")
        writer.finish(
            kind="run",
            stages=[named.name for named in plan.stages if plan.view.shows(named.name)],
            created=now(),
            producer=_producer(request, plan.says),
            model=with_constants(golden.manifest.model, plan.says.constants),
            case=_case_of(request, plan, tuple(prompts[number] for number in sorted(prompts))),
        )
    return request.out


def _producer(request: RunRequest, says: Description) -> Producer:
    """Who made the run: the device, with the modules that count as its source."""
    modules = device_modules(request.device, says.modules, request.device_name, request.golden.manifest.producer)
    notes = request.device.describe().notes  # once more: what it has compiled shows at the end
    return producer(says.name, modules, ("numpy",), 0, says.versions, notes)


def _case_of(request: RunRequest, plan: RunPlan, prompts: tuple[PromptCase, ...]) -> Case:
    """The golden's case as it was run."""
    case, names = request.golden.manifest.case, request.golden.declared
    return Case(
        k=case.k,
        schedule=case.schedule,
        max_new_tokens=case.max_new_tokens,
        partial_kv=case.partial_kv,
        kv_cache=case.kv_cache,
        settled=tuple({names[name].stage.template: None for name in plan.ties}),
        precision=plan.precision,
        mode=request.mode,
        forced=tuple({names[name].stage.template: None for name in names if name in plan.forced}),
        shown=declared_shown(plan.shown),
        lanes=plan.says.lanes,
        layers=(request.layers.first, request.layers.last) if request.layers else None,
        sampling=case.sampling,
        seed=case.seed,
        kept=plan.kept,
        positions=plan.positions,
        prompts_digest=case.prompts_digest,
        prompts=prompts,
    )


Ended = tuple[int, ForcingTrace, Generation | None]
"""A prompt's number, trace and free generation."""


def _driven(request: RunRequest, plan: RunPlan) -> Iterator[Ended]:
    """Every prompt as it ends: not in turn where the device runs several at once."""
    golden, traces = request.golden, dict[int, ForcingTrace]()
    names, wanted = golden.declared, {named.name for named in plan.stages}

    def make_trace(number: int) -> ForcingTrace:
        truth = truth_of(golden, number)
        traces[number] = ForcingTrace(names, truth, plan.forced, wanted.__contains__, plan.ties, plan.keeping)
        return traces[number]

    if request.layers:
        alone = cast(Layered, request.device)
        with _device_errors(alone.describe().name, golden.manifest.case, traces):
            for number, trace in run_layers(alone, golden, request.layers, make_trace, request.progress):
                yield number, trace, None
        return
    device, prompts = cast(Device, request.device), range(len(golden.manifest.case.prompts))
    ended = performed(device, ((number, _script(request, number, make_trace)) for number in prompts))
    while True:
        with _device_errors(device.describe().name, golden.manifest.case, traces):
            found = next(ended, None)
        if found is None:
            return
        number, generation = found
        yield number, traces.pop(number), generation


def _script(request: RunRequest, number: int, make_trace: Callable[[int], ForcingTrace]) -> Script[Generation | None]:
    """One prompt: the golden's rounds, and a free run behind or, of every second prompt, before them."""
    device, case = cast(Device, request.device), request.golden.manifest.case
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
        generation = yield from _freely(device, *alone, drafts, trace)
    yield from forced_rounds(device, *alone, trace, len(prompt.generated.acceptance_length), drafts)
    if free and not number % 2:
        generation = yield from _freely(device, *alone, drafts, trace)
    if sampled:
        yield VerbCall(SAMPLE, (None, sampled[1]), untapped)
    return generation


def _freely(
    device: Device, ids: Sequence[int], budget: int, drafts: Drafts | None, trace: ForcingTrace
) -> Script[Generation]:
    """The free run of the prompt that a trace is of, which records nothing meanwhile."""
    trace.idle = True
    generation = yield from free_rounds(device, ids, budget, drafts)
    trace.idle = False
    return generation


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


def _at(prompt: str, trace: ForcingTrace) -> str:
    return f"prompt {prompt}, {'its free run' if trace.idle else f'round {trace.round}'}"


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
            failed.place = " and ".join(_at(case.prompts[number].id, trace) for number, trace in traces.items())
        raise failed from (error if failed is not error else error.__cause__)
