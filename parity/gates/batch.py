"""Sequences in a batch: each is what it is alone, whatever its lane, its neighbours, and who joins or leaves.

A device that takes the option `lanes` is built with a few; one that has several lanes is taken as it is. The golden's
choices are forced, so that every seating of a prompt goes the same way, and its tensors are compared with those of
another seating: the same bits, or, where the number of rows in a product decides how it is tiled, within the bound of
`parity.gates.rollback.sameness.WithinNoise`, which is not measured on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.errors import NotOffered
from parity.gates.batch_seating import Difference, Prompts, Seated, owners
from parity.gates.context import GateContext, NoiseFloors
from parity.gates.gate import Check
from parity.gates.rollback.sameness import WithinNoise
from parity.seam import Batched, Device

LANES = 3
"""Of a device that has as many as it is asked for: a first one, a last one, and one between."""

ROUNDS = 3
"""A draft, and behind it two that find its rows in the caches, rejected ones and accepted ones."""

BUDGET = 4
"""Tokens of the sequence that ends first, in one or two rounds; each next one has two more."""

EXACT = "float32"

LANES_DIFFER = "a lane computes something else than its neighbours"
NEIGHBOURS = "a sequence depends on who sits beside it"


def checks(context: GateContext) -> Iterator[Check]:
    """In float32 where the device offers it: what a neighbour leaks is far beyond its rounding."""
    try:
        device, alone = _devices(context)
    except NotOffered as error:
        yield Check("batch", NOT_JUDGED, f"the device runs one sequence at a time: {error}")
        return
    lanes = device.describe().lanes
    if lanes < 2:
        yield Check("batch", NOT_JUDGED, "the device has one lane")
        return
    prompts = list(range(len(context.golden.manifest.case.prompts)))[:lanes]
    if len(prompts) < 2:
        yield Check("batch", INCONCLUSIVE, "the golden has one prompt: neighbours would be copies of it")
        return
    yield from _judged(context, device, alone, prompts)


def _devices(context: GateContext) -> tuple[Device, Device | None]:
    """The device with lanes, and without; None where it always has them."""
    precision = EXACT if _offers_float32(context) else context.precision
    named = context.device(precision)
    if isinstance(named, Batched):
        return named, None
    return context.device(precision, lanes=LANES), named


def _offers_float32(context: GateContext) -> bool:
    try:
        context.device(EXACT)
    except NotOffered:
        return False
    return True


def _judged(context: GateContext, device: Device, alone: Device | None, prompts: Sequence[int]) -> Iterator[Check]:
    says = device.describe()
    within = WithinNoise(context.golden.declared, says.precision, NoiseFloors(context.golden))
    seating, lanes = Prompts(context.golden, device), range(says.lanes)
    all_rounds = [ROUNDS] * len(prompts)
    first = seating.seat(prompts, all_rounds)
    mine = {seat.prompt: seat for seat in first}

    def unaccompanied(prompt: int, rounds: int, budget: int | None) -> Seated:
        if alone:
            return Prompts(context.golden, alone).alone(prompt, rounds, budget)
        return seating.seat([prompt], [rounds], [0], None if budget is None else [budget])[0]

    def compared(name: str, seats: Sequence[Seated], otherwise: str, with_first: bool = False) -> Check:
        found = Difference()
        for seat in seats:
            found.add(seats[0] if with_first else mine[seat.prompt], seat, within)
        return _check(name, found, within, otherwise)

    yield _captured(first, context)
    yield compared("the same again", seating.seat(prompts, all_rounds), "a race, or state that an earlier batch left")
    turned = seating.seat(prompts, all_rounds, list(lanes)[::-1])
    yield compared("in other lanes", turned, LANES_DIFFER)
    queue = [*prompts, *prompts]
    ragged = [1 + number % ROUNDS for number in range(len(queue))]
    yield compared("joining and leaving", seating.seat(queue, ragged), NEIGHBOURS)
    by_itself = [unaccompanied(prompt, ROUNDS, None) for prompt in prompts]
    yield compared("beside nobody", by_itself, NEIGHBOURS)
    budgets = [BUDGET + 2 * number for number in range(len(prompts))]
    last = [seating.ending(*one) for one in zip(prompts, budgets, strict=True)]
    mine = {seat.prompt: seat for seat in map(unaccompanied, prompts, last, budgets)}
    yield compared("budgets of their own", seating.seat(prompts, last, None, budgets), NEIGHBOURS)
    copies = seating.seat([prompts[-1]] * len(lanes), [ROUNDS] * len(lanes))
    yield compared("one prompt in all lanes", copies, LANES_DIFFER, True)


def _captured(seats: Sequence[Seated], context: GateContext) -> Check:
    """Whether each lane's tap was handed its own lane's tensors."""
    wrong = list(owners(seats, context.golden))
    name = "each lane's own tensors"
    if not wrong:
        said = f"all float stages of {len(seats)} lanes are most like their own prompt's golden"
        return Check(name, PASS, said)
    seat, other, round_, stage, own, best = wrong[0]
    own_id, other_id = (context.golden.manifest.case.prompts[number].id for number in (seat.prompt, other))
    said = (
        f"lane {seat.lane} runs prompt {own_id} and shows {stage} of {other_id}: correlation {best:.3f} with that, "
        f"{own:.3f} with its own; {len(wrong)} tensors in all"
    )
    return Check(name, FAIL, said, {"tensors": len(wrong)}, Place(stage, None, seat.prompt, round_))


def _check(name: str, found: Difference, within: WithinNoise, otherwise: str) -> Check:
    figures = {"tensors": found.tensors, "moved": found.moved, "worst": min(found.worst, 1e30)}
    if found.place is None:
        return Check(name, PASS, f"the same bits in all {found.tensors} tensors", figures)
    at = found.place
    if found.apart <= 1.0:
        most = within.said(at.stage, found.apart)
        said = f"{found.moved} of {found.tensors} tensors have other bits, at most {most} in {at.stage}"
        return Check(name, PASS, said, figures)
    far = "another value" if found.apart == float("inf") else within.said(at.stage, found.apart)
    where = f"lane {at.lane}" if at.lane == at.other else f"lane {at.other} (first in lane {at.lane})"
    if name == "budgets of their own" and at.stage.startswith("accept."):
        otherwise = "a lane ends with another's budget"
    said = f"prompt {at.prompt} in {where}, row {at.row}: {far}; {otherwise}"
    return Check(name, FAIL, said, figures, Place(at.stage, None, at.prompt, at.round, at.row))
