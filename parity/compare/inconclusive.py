"""Why a run as a whole proves less than it seems to: it parts from the golden, or shows too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parity.compare.flips import hidden_layers
from parity.compare.report import StageResult
from parity.golden.views import DumpView, TrustedGolden
from parity.kv_cache import KVFormats


def why_inconclusive(
    golden: TrustedGolden, run: DumpView, names: Sequence[str], not_shown: Mapping[str, str], whole: bool
) -> tuple[str, ...]:
    """Why a run proves nothing, whatever the stages `names` come to; nothing where it may.

    Args:
        whole: every stage was asked for.
    """
    lacking = (*_nothing_computed(golden, names), *_caches_unseen(golden, run, names)) if whole else ()
    return (*_parted(run), *_nothing_in_common(golden, run, names, not_shown), *lacking)


def unbounded(golden: TrustedGolden, results: Sequence[StageResult]) -> tuple[str, ...]:
    """Why a policy that judges no number proves nothing of a device that shows some; nothing of any other."""
    numbers = [result for result in results if not golden.declared[result.stage].stage.exact]
    if not numbers or any(result.judge != "none" for result in numbers):
        return ()
    return ("the policy judges no stage of numbers, by rows whose judge is none",)


def _caches_unseen(golden: TrustedGolden, run: DumpView, names: Sequence[str]) -> tuple[str, ...]:
    """Why a bfloat16 run does not tell in which format it keeps its caches: elsewhere its rows are judged as widely as
    such a format rounds. Nothing where it shows their contents."""
    if run.manifest.case.precision != "bfloat16":
        return ()
    formats = KVFormats.parse(golden.manifest.case.kv_cache)
    kept = {side: of for side, of in (("target", formats.target), ("drafter", formats.drafter)) if of}
    shown = {name.split(".")[1] for name in names if name.startswith("kv.") and name.endswith((".k", ".v"))}
    return tuple(
        f"whether the {side}'s caches are kept in {of} shows in no stage that this run shows: kv.{side}.* would tell"
        for side, of in kept.items()
        if side not in shown
    )


def _parted(run: DumpView) -> tuple[str, ...]:
    """One sentence for each prompt that a run did not take to its end."""
    cases = ((side, prompt) for side in run.sides for prompt in side.manifest.case.prompts)
    return tuple(
        f"prompt {prompt.id}: from {prompt.parted.stage} of round {prompt.parted.round} on "
        f"{side.manifest.producer.name} continues with tokens of its own, which nothing judges"
        for side, prompt in cases
        if prompt.parted
    )


def _nothing_in_common(
    golden: TrustedGolden, run: DumpView, names: Sequence[str], not_shown: Mapping[str, str]
) -> tuple[str, ...]:
    """Why two devices that show nothing but choices of what is asked for are not equivalent; nothing else."""
    if len(run.sides) < 2 or not not_shown or any(not golden.declared[name].stage.exact for name in names):
        return ()
    return ("the two devices show no numbers of the same stage",)


def _nothing_computed(golden: TrustedGolden, names: Sequence[str]) -> tuple[str, ...]:
    """Why lengths and places alone prove nothing of a device; nothing where it shows numbers or choices."""
    stages = [golden.declared[name].stage for name in names]
    if not stages or any(stage.forced or not stage.exact for stage in stages):
        return ()
    return (
        f"the run shows nothing that the models compute: {', '.join(names[:MOST_NAMES])} alone prove nothing of them",
    )


MOST_NAMES = 4
"""Stages that a sentence lists."""


def experts_hidden(golden: TrustedGolden, run: DumpView) -> bool:
    """Whether a bfloat16 run chooses experts that it does not show."""
    hidden = run.manifest.case.precision == "bfloat16" and not run.settled
    return hidden and any(hidden_layers(golden, side) for side in run.sides)
