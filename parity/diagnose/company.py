"""Whether a prompt fails because of others, before it on a device or beside it: alone on a fresh one it passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parity.compare.first_failure import held_at
from parity.compare.report import FAIL
from parity.diagnose.failing_run import CLEAR, FailingRun, failing_run
from parity.diagnose.gates import OF_LANES, GateCause
from parity.drive import run_device
from parity.gates.context import GateContext
from parity.gates.gate import Check
from parity.golden.store import Dump
from parity.golden.views import GoldenSlice, JoinedGoldens, TrustedGolden
from parity.policy import Policy
from parity.reproducing import Argument, command_line
from parity.run_request import RunRequest
from parity.seam import Device


def company_cause(
    golden: TrustedGolden, red: FailingRun, context: GateContext, policy: Policy, folder: Path
) -> GateCause | None:
    """The cause, where the prompt that fails passes alone on a device that has run nothing yet, and fails in company.

    What is near its bounds may pass alone by the floor of another set of rows, and is not asked.

    Args:
        golden: the whole golden that `red.prompt` is a number of.
        context: builds the device.
    """
    prompts, mode = golden.manifest.case.prompts, red.run.manifest.case.mode
    if len(prompts) < 2 or not any(residual.worst > CLEAR for residual in red.residuals()):
        return None
    fresh = context.fresh(context.precision)
    lanes = fresh.describe().lanes
    others = [number for number in range(len(prompts)) if number != red.prompt][: max(lanes - 1, 1)]

    def found(device: Device, numbers: Sequence[int], name: str) -> object:
        case = JoinedGoldens([_whole(golden, number) for number in numbers])
        run = Dump(run_device(RunRequest(device, case, mode, (), folder / name, free=red.free)))
        return failing_run(case, run, policy, context.rerun)

    if found(fresh, [red.prompt], "alone") is not None:
        return None
    together = found(context.fresh(context.precision), [*others, red.prompt], "in-company")
    if not isinstance(together, FailingRun):
        return None
    kind = BESIDE if lanes > 1 else BEHIND
    said = f"prompt {red.prompt} ({prompts[red.prompt].id}) fails {kind.where}, and passes alone on a fresh device"
    holds = _held(together) if kind is BEHIND else ""
    held = f": run behind prompt {others[0]}, {holds} (prompts numbered in that run, from 0)" if holds else ""
    asked: dict[str, Argument | None] = {"precision": context.precision, "mode": mode, "policy": context.bounds}
    return GateCause(
        kind.gate,
        Check(kind.check, FAIL, said),
        command_line("diff", golden=golden.folder, device=context.device_name, **asked),
        kind.id,
        kind.says + held,
        kind.fix,
        headline=f"first divergent: {red.first_in(golden)}; alone it passes",
    )


def _held(red: FailingRun) -> str:
    """What the wrong rows of the first divergent stage hold instead, or those of the first cache that fails."""
    failing = (result.first for result in red.report.stages if result.verdict == FAIL)
    caches = (place for place in failing if place is not None and red.golden.declared[place.stage].stage.cache)
    held = ((place.stage, held_at(red.golden, red.run, place)) for place in caches)
    return red.report.holds or next((f"{stage}: {says}" for stage, says in held if says), "")


def _whole(golden: TrustedGolden, prompt: int) -> GoldenSlice:
    """One prompt to its end."""
    case = golden.manifest.case
    return GoldenSlice(golden, prompt, len(case.prompts[prompt].generated.acceptance_length), case.max_new_tokens)


@dataclass(frozen=True)
class Company:
    """Others that a prompt fails by: where they are, the check of a gate that asks for that, and what it means."""

    where: str
    gate: str
    check: str
    id: str
    says: str
    fix: str


BESIDE = Company(
    "beside others", "batch", "beside nobody", "batch-neighbours", "a sequence depends on who sits beside it", OF_LANES
)
BEHIND = Company(
    "behind another sequence",
    "lifecycle",
    "the next prompt",
    "state-across-prompts",
    "a sequence depends on what ran before it",
    "what a new prefill has to set back: caches, lengths, buffers, counters",
)
