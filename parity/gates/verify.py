"""A pass of K+1 rows gives what K+1 passes of one row give: the condition for losslessness, with no golden in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.decode import Decoded, decode
from parity.errors import Inconclusive, NotOffered, UsageError
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.made_up import try_tie_rule
from parity.gates.verify_agreement import Agreement, DecodeCase, VerifyPass, accepting_passes, rejecting_passes
from parity.seam import Device

PROMPTS, STEPS = 4, 32
"""Golden prompts walked at their own length, and tokens behind each: 32 cross a boundary of 32 or fewer rows."""

EDGES, FEW_STEPS = (32, 64, 128), 8
"""Widths that passes and caches are padded to: prompts of one token less, as many, and one more."""

BATCH, BATCH_PROMPTS = 2, 2


def checks(context: GateContext) -> Iterator[Check]:
    """Verify against decode in float32 and in the context's precision, in a batch, and on exact ties."""
    noise = NoiseFloors(context.golden)
    for precision in dict.fromkeys(("float32", context.precision)):
        yield rows_agree(context, noise, precision)
    yield batch_agrees(context, noise)
    yield lowest_wins(context)


def rows_agree(context: GateContext, noise: NoiseFloors, precision: str) -> Check:
    """Every position of the cases, passes of 1, 2, K and K+1 drafts."""
    device, k = context.device(precision), context.golden.manifest.case.k
    agreement, drafts = Agreement("bfloat16" if noise.flips else precision, noise), sorted({min(1, k), min(2, k), k})
    cases = _own_lengths(context, PROMPTS) + _edges(context, device)
    for number, case in enumerate(cases):
        context.progress(number, len(cases), f"verify {case.name}")
        plain = decode(device, case.ids, case.budget)
        for count in drafts:
            whole = count == k and case.budget > FEW_STEPS
            for phase in range(count + 1 if whole else 1):
                _collect(agreement, accepting_passes(device, case, plain, count, phase), plain)
        for true in range(k):
            _collect(agreement, rejecting_passes(device, case, plain, k, true, behind=1 + true % 2), plain)
    more = _one_above(context, agreement, precision)
    widths = ", ".join(map(str, drafts)) + (f", {k + 1}" if not more else "")
    name = f"K+1 rows = K+1 decodes, {precision}"
    return _check(name, agreement, f"K {widths}, {len(cases)} prompts, lengths {_lengths(cases)}{more}")


def batch_agrees(context: GateContext, noise: NoiseFloors) -> Check:
    """Verify against decode with two sequences in the batch, and either batch against the other."""
    name = f"batch {BATCH}, {context.precision}"
    try:
        device = context.device(batch=BATCH)
    except NotOffered as error:
        return Check(name, INCONCLUSIVE, f"not checked: {error}")
    alone, k = context.device(), context.golden.manifest.case.k
    agreement, across = (Agreement(context.precision, noise) for _ in range(2))
    for case in _own_lengths(context, BATCH_PROMPTS):
        single = decode(alone, case.ids, case.budget)
        plain = decode(device, case.ids, case.budget)
        _collect(agreement, accepting_passes(device, case, plain, k), plain)
        _collect(across, accepting_passes(device, case, single, 0), single)
    first = _check(name, agreement, "verify = decode")
    second = _check(name, across, f"batch {BATCH} = batch 1")
    worst = first if first.verdict == FAIL else second if second.verdict != PASS else first
    both = {"verify": first.figures, "against_batch_1": second.figures}
    return Check(name, worst.verdict, f"{first.evidence}; {second.evidence}", both, worst.place)


def lowest_wins(context: GateContext) -> Check:
    """Exact ties, made up and handed to the device through its tap."""
    name, golden = "lowest id on a tie", context.golden.manifest.case
    try:
        tried = try_tie_rule(context.device(), golden.prompts[0].ids, golden.k, context.seed)
    except Inconclusive as error:
        return Check(name, INCONCLUSIVE, f"not checked: {error}")
    figures = {"rows": tried.rows, "wrong": list(tried.wrong)}
    if tried.wrong:
        return Check(
            name, FAIL, f"{len(tried.wrong)} of {tried.rows} rows take another; first {tried.wrong[0]}", figures
        )
    return Check(
        name, PASS, f"{tried.rows} rows of equal largest logits in prefill, 1 row and {golden.k + 1} rows", figures
    )


def _collect(agreement: Agreement, passes: Iterable[VerifyPass], plain: Decoded) -> None:
    for verify_pass in passes:
        agreement.add(verify_pass, plain)


def _one_above(context: GateContext, agreement: Agreement, precision: str) -> str:
    """The same with one draft more than the golden's K; why not, where the device refuses it."""
    k = context.golden.manifest.case.k + 1
    try:
        device = context.device(precision, k=k)
    except (UsageError, NotOffered) as error:
        return f"; K {k} not checked: {str(error).rstrip('.')}"
    for case in _own_lengths(context, 1):
        plain = decode(device, case.ids, case.budget)
        _collect(agreement, accepting_passes(device, case, plain, k), plain)
    return ""


def _check(name: str, agreement: Agreement, what: str) -> Check:
    verdict = agreement.verdict()
    if not agreement.errors:
        return Check(name, verdict, agreement.evidence(), agreement.figures())
    words, place = agreement.worst()
    line = f"{what}: {agreement.evidence()}" + ("" if verdict == PASS else f"; worst at {words}")
    return Check(name, verdict, line, agreement.figures(), None if verdict == PASS else place)


def _own_lengths(context: GateContext, count: int) -> list[DecodeCase]:
    """Golden prompts, evenly spread."""
    case = context.golden.manifest.case
    chosen = sorted({len(case.prompts) * index // count for index in range(count)})
    budget = min(case.max_new_tokens, STEPS + 1)
    return [DecodeCase(case.prompts[number].id, number, case.prompts[number].ids, budget) for number in chosen]


def _edges(context: GateContext, device: Device) -> list[DecodeCase]:
    """The longest prompt, cut to just below, at and above every padding width it reaches."""
    prompts = context.golden.manifest.case.prompts
    number = max(range(len(prompts)), key=lambda number: len(prompts[number].ids))
    ids, room = prompts[number].ids, device.describe().max_positions
    lengths = [edge + step for edge in EDGES for step in (-1, 0, 1)]
    fitting = [length for length in lengths if length <= len(ids) and length + 2 * FEW_STEPS + 1 <= room]
    return [
        DecodeCase(f"{prompts[number].id} cut to {length}", number, ids[:length], FEW_STEPS + 1) for length in fitting
    ]


def _lengths(cases: list[DecodeCase]) -> str:
    lengths = sorted(len(case.ids) for case in cases)
    return f"{lengths[0]} to {lengths[-1]}"
