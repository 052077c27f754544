"""A pass of K+1 rows gives what K+1 passes of one row give: the condition for losslessness, with no golden in it."""

from __future__ import annotations

from collections.abc import Iterator

from parity.compare.report import FAIL, INCONCLUSIVE, PASS
from parity.decode import Decoded, decode
from parity.errors import Inconclusive, NotOffered, UsageError
from parity.gates.context import Bench, Noise
from parity.gates.evidence import Check
from parity.gates.verify.agreement import Agreement, Case, accepting, rejecting
from parity.gates.verify.tie import ties
from parity.seam import Device

PROMPTS, STEPS = 4, 32
"""Golden prompts walked at their own length, and tokens behind each: 32 cross a boundary of 32 or fewer rows."""

EDGES, FEW_STEPS = (32, 64, 128), 8
"""Widths that passes and caches are padded to: prompts of one token less, as many, and one more."""

BATCH, BATCH_PROMPTS = 2, 2


def checks(bench: Bench) -> Iterator[Check]:
    """Verify against decode in float32 and in the bench's precision, in a batch, and on exact ties."""
    noise = Noise(bench.golden)
    for precision in dict.fromkeys(("float32", bench.precision)):
        yield rows_agree(bench, noise, precision)
    yield batch_agrees(bench, noise)
    yield lowest_wins(bench)


def rows_agree(bench: Bench, noise: Noise, precision: str) -> Check:
    """Every position of the cases, passes of 1, 2, K and K+1 drafts."""
    device, k = bench.device(precision), bench.golden.manifest.case.k
    found, drafts = Agreement(precision, noise), sorted({min(1, k), min(2, k), k})
    cases = _own_lengths(bench, PROMPTS) + _edges(bench, device)
    for number, case in enumerate(cases):
        bench.progress(number, len(cases), f"verify {case.name}")
        plain = decode(device, case.ids, case.budget)
        for count in drafts:
            whole = count == k and case.budget > FEW_STEPS
            for phase in range(count + 1 if whole else 1):
                _collect(found, accepting(device, case, plain, count, phase), plain)
        for true in range(k):
            _collect(found, rejecting(device, case, plain, k, true, behind=1 + true % 2), plain)
    more = _one_above(bench, found, precision)
    widths = ", ".join(map(str, drafts)) + (f", {k + 1}" if not more else "")
    name = f"K+1 rows = K+1 decodes, {precision}"
    return _check(name, found, f"K {widths}, {len(cases)} prompts, lengths {_lengths(cases)}{more}")


def batch_agrees(bench: Bench, noise: Noise) -> Check:
    """Verify against decode with two sequences in the batch, and either batch against the other."""
    name = f"batch {BATCH}, {bench.precision}"
    try:
        device = bench.device(batch=BATCH)
    except NotOffered as error:
        return Check(name, INCONCLUSIVE, f"not checked: {error}")
    alone, k = bench.device(), bench.golden.manifest.case.k
    found, across = (Agreement(bench.precision, noise) for _ in range(2))
    for case in _own_lengths(bench, BATCH_PROMPTS):
        one = decode(alone, case.ids, case.budget)
        plain = decode(device, case.ids, case.budget)
        _collect(found, accepting(device, case, plain, k), plain)
        _collect(across, accepting(device, case, one, 0), one)
    first = _check(name, found, "verify = decode")
    second = _check(name, across, f"batch {BATCH} = batch 1")
    worst = first if first.verdict == FAIL else second if second.verdict != PASS else first
    both = {"verify": first.figures, "against_batch_1": second.figures}
    return Check(name, worst.verdict, f"{first.evidence}; {second.evidence}", both, worst.place)


def lowest_wins(bench: Bench) -> Check:
    """Exact ties, made up and handed to the device through its tap."""
    name, golden = "lowest id on a tie", bench.golden.manifest.case
    try:
        found = ties(bench.device(), golden.prompts[0].ids, golden.k, bench.seed)
    except Inconclusive as error:
        return Check(name, INCONCLUSIVE, f"not checked: {error}")
    figures = {"rows": found.rows, "wrong": list(found.wrong)}
    if found.wrong:
        return Check(
            name, FAIL, f"{len(found.wrong)} of {found.rows} rows take another; first {found.wrong[0]}", figures
        )
    return Check(
        name, PASS, f"{found.rows} rows of equal largest logits in prefill, 1 row and {golden.k + 1} rows", figures
    )


def _collect(found: Agreement, passes, plain: Decoded) -> None:
    for one in passes:
        found.add(one, plain)


def _one_above(bench: Bench, found: Agreement, precision: str) -> str:
    """The same with one draft more than the golden's K; why not, where the device refuses it."""
    k = bench.golden.manifest.case.k + 1
    try:
        device = bench.device(precision, k=k)
    except (UsageError, NotOffered) as error:
        return f"; K {k} not checked: {str(error).rstrip('.')}"
    for case in _own_lengths(bench, 1):
        plain = decode(device, case.ids, case.budget)
        _collect(found, accepting(device, case, plain, k), plain)
    return ""


def _check(name: str, found: Agreement, what: str) -> Check:
    verdict = found.verdict()
    if not found.errors:
        return Check(name, verdict, found.evidence(), found.figures())
    words, place = found.worst()
    line = f"{what}: {found.evidence()}" + ("" if verdict == PASS else f"; worst at {words}")
    return Check(name, verdict, line, found.figures(), None if verdict == PASS else place)


def _own_lengths(bench: Bench, count: int) -> list[Case]:
    """Golden prompts, evenly spread."""
    case = bench.golden.manifest.case
    chosen = sorted({len(case.prompts) * one // count for one in range(count)})
    budget = min(case.max_new_tokens, STEPS + 1)
    return [Case(case.prompts[one].id, one, case.prompts[one].ids, budget) for one in chosen]


def _edges(bench: Bench, device: Device) -> list[Case]:
    """The longest prompt, cut to just below, at and above every padding width it reaches."""
    prompts = bench.golden.manifest.case.prompts
    number = max(range(len(prompts)), key=lambda one: len(prompts[one].ids))
    ids, room = prompts[number].ids, device.describe().max_positions
    lengths = [edge + step for edge in EDGES for step in (-1, 0, 1)]
    fitting = [length for length in lengths if length <= len(ids) and length + 2 * FEW_STEPS + 1 <= room]
    return [Case(f"{prompts[number].id} cut to {length}", number, ids[:length], FEW_STEPS + 1) for length in fitting]


def _lengths(cases: list[Case]) -> str:
    lengths = sorted(len(case.ids) for case in cases)
    return f"{lengths[0]} to {lengths[-1]}"
