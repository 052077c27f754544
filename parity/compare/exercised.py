"""What a comparison could not have seen go wrong: choices on forced inputs, and what no round of the golden does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from parity.golden.fields import Mode
from parity.golden.views import DumpView
from parity.partial_kv import PartialKV
from parity.stages import PREFILL, TABLE


def on_forced_inputs(forced: Iterable[str], mode: Mode) -> tuple[str, ...]:
    """Templates of the exact stages that a chained run computes from nothing but what it was given of the golden's."""
    forced = set(forced)
    exact = [stage for stage in TABLE if stage.exact and stage.inputs]
    return () if mode == "local" else tuple(one.template for one in exact if forced.issuperset(one.inputs))


def not_exercised(golden: DumpView, lanes: int = 1) -> Iterator[str]:
    """What no prompt of a golden does on a device of so many lanes, in words."""
    prompts, k = [prompt for prompt in golden.manifest.case.prompts if prompt.generation], golden.manifest.case.k
    runs = [prompt.generated for prompt in prompts]
    accepted = {count for run in runs for count in run.accepted_drafts}
    longest = max((len(prompt.ids) + len(run.emitted) for prompt, run in zip(prompts, runs, strict=True)), default=0)
    if len(golden.manifest.case.prompts) == 1:
        yield "a second sequence on the same device"
    if lanes > len(golden.manifest.case.prompts):
        yield f"the last {lanes - len(golden.manifest.case.prompts)} of {lanes} lanes"
    elif lanes == len(golden.manifest.case.prompts) > 1:
        yield "a sequence that joins others"
    if 0 not in accepted:
        yield "a round that rejects its first draft"
    if k > 1 and not accepted & set(range(1, k)):
        yield "a round that accepts some of its drafts"
    if k not in accepted:
        yield "a round that accepts all its drafts"
    if not any(run.finish == "eos" for run in runs):
        yield "a generation that an end token ends"
    kept = PartialKV.parse(golden.manifest.case.partial_kv)
    if kept is not None and longest <= kept.rows:
        yield f"a row of the drafter that leaves a page out: {kept} is {kept.rows} rows"
    constants = golden.manifest.model.target.constants
    for key, what in (
        ("sliding_window", "a row behind the sliding window of"),
        ("rope_parameters.original_max_position_embeddings", "a position beyond the original context of"),
    ):
        length = constants.get(key)
        if isinstance(length, int) and longest <= length:
            yield f"{what} {length}"


def unseen_passes(run: DumpView, names: Sequence[str]) -> Iterator[str]:
    """What is shown in the prefill alone, or in rounds alone, though it occurs in both: there nothing is compared."""
    for side in run.sides:
        for when, stages in side.view.lacking().items():
            templates = (side.declared[name].stage.template for name in stages if name in names)
            if families := list(dict.fromkeys(template.replace("{l}", "*") for template in templates)):
                where, other = ("the prefill", "rounds") if when == PREFILL else ("rounds", "the prefill")
                yield f"{', '.join(families)} in {where}: this run shows them in {other} alone"
