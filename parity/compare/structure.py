"""Structure before values: what is missing, surplus, misshapen, not finite or constant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.compare.rows import FLOOR, Clock, StageRows
from parity.golden.fields import Variant
from parity.golden.ranks import replicas_differ
from parity.golden.views import DumpView, TrustedGolden
from parity.metrics import PairMetrics
from parity.stages import PREFILL, Named, dataflow

INTEGER = ("int64", "int32", "uint8")
DEVICE = {"bfloat16": ("bfloat16", "float32"), "float32": ("float32",)}
"""Dtypes of approximate stages by the run's precision: a bfloat16 device may keep accumulators in float32."""


@dataclass(frozen=True)
class Finding:
    """Something that is wrong whatever the values: always a failure.

    Args:
        kind: missing, surplus, unknown, empty, shape, axes, dtype, replicas, non-finite, constant, generation,
            config.
        stage: full stage name.
        prompt: prompt number.
        round: round number.
        message: one sentence.
    """

    kind: str
    stage: str
    prompt: int
    round: int
    message: str


def check_structure(golden: TrustedGolden, run: DumpView, names: Iterable[str]) -> list[Finding]:
    """Compare the run's tensors with the golden's declared stages, prompt by prompt and round by round."""
    wanted = {name for name in names if name not in golden.declared or run.view.shows(name)}
    findings = list(_declared(golden, run, wanted))
    wanted &= set(run.manifest.stages)
    for prompt, case in enumerate(golden.manifest.case.prompts):
        for round_ in range(Clock.of(case).rounds):
            for named in due(golden, run, prompt, round_):
                if named.name in wanted:
                    findings += _tensor(golden, run, named, prompt, round_)
    return findings


def due(golden: TrustedGolden, run: DumpView, prompt: int, round_: int) -> list[Named]:
    """The stages that a run owes of a round, in the order data flows: those shown, up to where it parted."""
    flow = dataflow(golden.declared.values(), round_, golden.manifest.case.drafts(round_))
    shown = [named for named in flow if run.view.rows(named.name, round_)]
    parted = run.manifest.case.prompts[prompt].parted
    if parted is None or round_ < parted.round:
        return shown
    names = [named.name for named in shown]
    return shown[: names.index(parted.stage) + 1] if round_ == parted.round and parted.stage in names else []


def _declared(golden: TrustedGolden, run: DumpView, wanted: set[str]) -> Iterator[Finding]:
    """The stage lists themselves, and tensors that no golden round accounts for."""
    precision = run.manifest.case.precision
    for name in (name for name in golden.manifest.stages if name not in golden.declared):
        yield Finding("unknown", name, 0, 0, f"{name} is declared by the golden but is no stage of the table")
    for name in (name for name in golden.manifest.stages if name in wanted and name not in run.manifest.stages):
        yield Finding("missing", name, 0, _due(golden, name), f"{name} is missing: the run does not declare it")
    for name in (name for name in run.manifest.stages if name not in golden.manifest.stages):
        yield Finding("surplus", name, 0, _due(golden, name), f"{name} is surplus: the golden does not declare it")
    for variant, prompt, round_, name in run.rows:
        if name in golden.declared and not run.view.rows(name, round_):
            undeclared = f"{name} of round {round_} is recorded, and not declared as shown"
            yield Finding("surplus", name, prompt, round_, undeclared)
        if name in wanted and ("float32", prompt, round_, name) not in golden.rows:
            yield Finding("surplus", name, prompt, round_, f"the golden has no {name} in round {round_}")
        if variant != precision:
            yield Finding("dtype", name, prompt, round_, f"{name} is recorded as {variant} in a {precision} run")


def _due(golden: TrustedGolden, name: str) -> int:
    """The first round in which a stage occurs."""
    named = golden.declared.get(name)
    return 0 if named is None or PREFILL in named.stage.when else 1


def _tensor(golden: TrustedGolden, run: DumpView, named: Named, prompt: int, round_: int) -> Iterator[Finding]:
    """One tensor of both sides, by their manifests; the first thing wrong with it."""

    def finding(kind: str, message: str) -> Finding:
        return Finding(kind, named.name, prompt, round_, f"{named.name} {message} (prompt {prompt}, round {round_})")

    def place(variant: Variant) -> tuple[Variant, int, int, str]:
        return variant, prompt, round_, named.name

    true, seen = golden.rows.get(place("float32")), run.rows.get(place(run.manifest.case.precision))
    floors = [] if named.stage.exact else [FLOOR[run.manifest.case.mode]]
    if true is None:
        yield finding("missing", "is declared by the golden, which lacks it")
    elif any(place(floor) not in golden.rows for floor in floors):
        yield finding("missing", f"has no noise floor in the golden ({floors[0]})")
    elif true.dtype not in (("float32", "float64") if floors else INTEGER):
        yield finding("dtype", f"has dtype {true.dtype} in the golden")
    elif any(golden.rows[place(floor)].full_shape != true.full_shape for floor in floors):
        shape = list(golden.rows[place(floors[0])].full_shape)
        yield finding("shape", f"has a noise floor of shape {shape}, the golden's is {list(true.full_shape)}")
    elif seen is None:
        yield finding("missing", "is missing from the run")
    elif replicas_differ(run.parts[place(run.manifest.case.precision)]):
        yield finding("replicas", "differs between ranks that should hold the same")
    elif true.axes != seen.axes:
        yield finding("axes", f"has axes {list(seen.axes)}, the golden's are {list(true.axes)}")
    elif seen.full_shape != (due_shape := _due_shape(run, named.name, round_, true.full_shape)):
        kind = "empty" if 0 in seen.full_shape else "shape"
        yield finding(kind, f"has shape {list(seen.full_shape)}, the golden's is {list(due_shape)}")
    elif seen.dtype not in (INTEGER if named.stage.exact else DEVICE[run.manifest.case.precision]):
        wanted = "an integer" if named.stage.exact else " or ".join(DEVICE[run.manifest.case.precision])
        yield finding("dtype", f"has dtype {seen.dtype}, it should be {wanted}")


def _due_shape(run: DumpView, stage: str, round_: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The golden's shape, or that of its last row where the run declares no more."""
    return (1, *shape[1:]) if run.view.rows(stage, round_) == "last" and shape else shape


def check_values(rows: StageRows, pair: PairMetrics, floor: PairMetrics) -> list[Finding]:
    """NaN or Inf in the golden or its floor, or in the device where the golden has none; constant where it is not.

    A mask's -inf is no score: references record what was scored, before the mask. So a golden that is not finite is
    broken, whatever the device has there.
    """
    name, findings = rows.named.name, []
    bad, noise = pair.nonfinite, floor.nonfinite
    for side, values, nan, inf in (
        ("golden", rows.golden, bad.golden_nan, bad.golden_inf),
        ("noise floor", rows.noise_floor, noise.device_nan, noise.device_inf),
    ):
        if nan or inf:
            first = np.argwhere(~np.isfinite(values))[0]
            findings.append(_nonfinite(rows, first.tolist(), f"{nan} NaN and {inf} Inf in the {side}"))
    if bad.first is not None:
        findings.append(_nonfinite(rows, bad.first, f"{bad.mismatches} NaN or Inf that the golden lacks"))
    if pair.device_constant and not pair.golden_constant:
        place = int(rows.prompt[0]), int(rows.round[0])
        findings.append(Finding("constant", name, *place, f"{name} is constant, the golden's is not"))
    return findings


def _nonfinite(rows: StageRows, index: Sequence[int], what: str) -> Finding:
    """NaN or Inf on one side, and where the first of them is."""
    name, row = rows.named.name, index[0]
    where = int(rows.prompt[row]), int(rows.round[row])
    message = f"{name} has {what}, the first at {[*index[1:]]} of position {rows.position[row]}"
    return Finding("non-finite", name, *where, f"{message} (prompt {where[0]}, round {where[1]})")
