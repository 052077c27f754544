"""The caches' end: a sequence that just fits runs like any other, one that does not is refused or decoded plainly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS
from parity.errors import DeviceEnded, DeviceFailed, NotOffered, UsageError
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.made_up import ONE_PIECE
from parity.gates.rollback.baseline import Baseline, GivenText, RecordingTap, repeated
from parity.gates.rollback.history import RoundPlan, SequencePlan
from parity.gates.rollback.invariants import InvariantBroken
from parity.gates.rollback.kept import KeptRows, kept_rows
from parity.gates.rollback.play import HistoryPlayer
from parity.gates.rollback.shown_caches import as_far_as_shown
from parity.raised import raised_text, refuses
from parity.seam import Device, Looping
from parity.stages import TARGET_LOGITS

PROMPT = 24
FILLABLE = 1024
"""Positions that a prompt can fill in seconds; more is not judged by filling a device's own caches."""


@dataclass
class BoundaryOutcomes:
    """What happened at each size: spare rows to outcome; what was admitted and did not run rightly stays `admitted`."""

    outcomes: dict[int, str] = field(default_factory=dict)
    admission: InvariantBroken | None = None
    contents: InvariantBroken | None = None
    rounds: int = 0
    rows: int = 0
    worst: float = 0.0


def checks(context: GateContext) -> Iterator[Check]:
    """Caches made small, then the device's own maximum."""
    if isinstance(context.device(), Looping):
        yield Check("admission", INCONCLUSIVE, f"{ONE_PIECE}, and what it refuses is not seen before it runs")
        return
    ends = BoundaryOutcomes()
    try:
        _small(context, ends)
    except NotOffered as error:
        yield Check("admission", NOT_JUDGED, f"{error}: the device's own maximum is filled instead")
    else:
        made = _admission("admission", ends), _contents("contents at the end, float32", ends)
        yield from as_far_as_shown(made, context.device())
    yield from _own(context, judged=bool(ends.outcomes))


def _small(context: GateContext, ends: BoundaryOutcomes) -> None:
    """Devices of a few rows, against a roomy one."""
    roomy, k = context.device("float32"), context.golden.manifest.case.k
    budget, prompt = 2 * k + 3, context.golden.manifest.case.prompts[0].ids
    noise = NoiseFloors(context.golden)
    baseline = Baseline(roomy, 0, repeated(prompt, PROMPT), budget + k + 1, noise.flip_bound(TARGET_LOGITS))
    for spare in spares(k):  # one after the other, and none kept: each holds all the weights
        device = context.build(precision="float32", k=k, max_positions=PROMPT + budget + k + spare)
        _try(ends, device, baseline, budget, spare, exact=False, kept=kept_rows(noise))


def spares(k: int) -> tuple[int, ...]:
    """Rows beyond prompt, budget and K: one to spare, none, one short.

    Two short, the last round's drafts have no row; K short, only the tokens have one.
    """
    return tuple(dict.fromkeys((1, 0, -1, -2, -k)))


def _try(
    ends: BoundaryOutcomes,
    device: Device,
    baseline: Baseline,
    budget: int,
    spare: int,
    exact: bool,
    kept: KeptRows | None,
) -> None:
    """Refused, or played to the end under every pattern of acceptance."""
    most = device.describe().max_positions
    try:
        said = refusal(device, baseline.ids, budget, most)
        if said and spare >= 0:
            raise InvariantBroken("admission", f"{_size(spare)}: refused though it fits ({said})")
        ends.outcomes[spare] = "refused" if said else "admitted"
    except InvariantBroken as wrong:
        ends.outcomes[spare] = "wrong"
        ends.admission = ends.admission or wrong
        return
    if said:
        return
    player = HistoryPlayer(device, [baseline], exact, fewer=True, kept=kept)
    k = player.k
    patterns = [[RoundPlan(right, k) for right in accepted] for accepted in ((k,), (0,), (k, 0), (0, 0, k))]
    patterns += [[RoundPlan(k, k), RoundPlan(0, 0, asked=0)]] if player.varies else []
    for pattern in patterns:
        rounds = tuple(pattern[n % len(pattern)] for n in range(budget))
        try:
            player.play((SequencePlan(0, budget, rounds),))
        except InvariantBroken as wrong:
            line = f"{_size(spare)}, {most} positions, {', '.join(map(str, pattern))}, …"
            line += f" → round {player.sequence.round}: {wrong.message}"
            ends.contents = ends.contents or InvariantBroken(wrong.aspect, line, wrong.place)
            if spare < 0:  # what does not fit was let in; what fits and breaks is a matter of its contents
                ends.admission = ends.admission or InvariantBroken("admission", f"admitted though it breaks: {line}")
            return
    ends.outcomes[spare] = "runs"
    ends.rounds += player.coverage.rounds
    ends.rows += player.coverage.rows
    ends.worst = max(ends.worst, player.coverage.worst[0])


def refusal(device: Device, ids: Sequence[int], budget: int, most: int) -> str:
    """What prefill says when it refuses; '' if it takes the sequence.

    Raises:
        Broken: it fails in another way than by a sentence that names a size, before anything is computed.
    """
    tap = RecordingTap()
    try:
        device.prefill(ids, budget, tap)
    except DeviceEnded:
        raise
    except Exception as error:
        k, said = device.describe().k, raised_text(error)
        sizes = {most, len(ids) + budget, len(ids) + budget + k}
        names = sizes & {int(number) for number in re.findall(r"\d+", said)}
        if names and refuses(error) and not tap.count:
            return said
        what = f"after {tap.count} stages" if tap.count else "without naming the size"
        raise InvariantBroken("admission", f"prefill raised {what}: {said}") from error
    return ""


def _size(spare: int) -> str:
    """How prompt + budget + K stand to the caches."""
    return "exactly at" if not spare else f"{abs(spare)} {'below' if spare > 0 else 'above'}"


def _admission(name: str, ends: BoundaryOutcomes) -> Check:
    sizes = ", ".join(f"{_size(spare)} {what}" for spare, what in ends.outcomes.items())
    line = f"prompt + budget + K against the maximum: {sizes}"
    if ends.admission:
        return Check(name, FAIL, f"{ends.admission.message}; {line}", {"outcomes": ends.outcomes})
    return Check(name, PASS, line, {"outcomes": ends.outcomes})


def _contents(name: str, ends: BoundaryOutcomes) -> Check:
    if ends.contents:
        return Check(name, FAIL, ends.contents.message, {}, ends.contents.place)
    if not ends.rounds:
        return Check(name, INCONCLUSIVE, "no size was admitted: nothing reached the end")
    compared = f", worst row {ends.worst:.2g} off a roomy device" if ends.worst else ""
    line = f"{ends.rounds} rounds, accepting all, none and some: {ends.rows} committed rows untouched{compared}"
    return Check(name, PASS, line, {"rounds": ends.rounds, "worst": ends.worst})


def _own(context: GateContext, judged: bool) -> Iterator[Check]:
    """The device's own maximum, filled by a prompt said over and over."""
    device = context.device("float32")
    most, k = device.describe().max_positions, device.describe().k
    if most > FILLABLE:
        verdict = NOT_JUDGED if judged else INCONCLUSIVE
        yield Check("own maximum", verdict, f"{most} positions are too many to fill: give the factory `max_positions`")
        return
    budget, ends = k + 3, BoundaryOutcomes()
    ids = repeated(context.golden.manifest.case.prompts[0].ids, most - budget - k)
    baseline = Baseline(device, 0, ids, budget - 1, NoiseFloors(context.golden).flip_bound(TARGET_LOGITS))
    try:
        baseline.compute()
    except DeviceEnded:
        raise
    except (UsageError, DeviceFailed) as error:
        what = "refused" if refuses(error) else "fails"
        yield Check(f"own maximum, {most} positions", FAIL, f"{what} though it fits: {error}")
        return
    kept = kept_rows(NoiseFloors(context.golden))
    _try(ends, device, baseline, baseline.more, budget - baseline.more, exact=False, kept=kept)
    # Nothing is left to compute the last token's truth with: exactly at the end only bits are judged.
    fed = GivenText(baseline, ids[: k + 2])
    _try(ends, device, fed, budget, 0, exact=True, kept=kept)
    _try(ends, device, fed, budget + 1, -1, exact=True, kept=kept)
    made = _admission(f"own maximum, {most} positions", ends), _contents("contents at its end", ends)
    yield from as_far_as_shown(made, device)
