"""Sequences in a batch: each is what it is alone, whatever its lane, its neighbours, and who joins or leaves.

A device that takes the option `lanes` is built with a few; one that has several lanes is taken as it is. The golden's
choices are forced, so that every seating of a prompt goes the same way, and its tensors are compared with those of
another seating: the same bits, or, where the number of rows in a product decides how it is tiled, within the bound of
`parity.gates.rollback.sameness.WithinNoise`, which is not measured on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from parity.batching import VERBS
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, WARN, Place
from parity.gates.batch_errors import error_check
from parity.gates.batch_seating import Prompts, Seated, Stay, likenesses
from parity.gates.context import EXACT, GateContext, NoiseFloors
from parity.gates.difference import Difference, DifferingRow
from parity.gates.gate import Check
from parity.gates.rollback.sameness import WithinNoise
from parity.raised import raised_text, refuses
from parity.seam import Batched, Device
from parity.shown import View

LANES = 3
"""Of a device that has as many as it is asked for: a first one, a last one, and one between."""

ROUNDS = 3
"""A draft, and behind it two that find its rows in the caches, rejected ones and accepted ones."""

Seats = tuple[Seated, Seated]
"""A sequence in two seatings."""

NEIGHBOURS = "a sequence depends on who sits beside it"
MEANING = {
    "the same again": "a race, or state that an earlier batch left",
    "in other lanes": "a lane computes something else than its neighbours",
    "in reverse order": "a lane computes something else than its neighbours",
    "one prompt in all lanes": "a lane computes something else than its neighbours",
    "an end token of one": "an end token ends, or cuts, another sequence",
    "other numbers of drafts": "a lane is verified with another's number of drafts",
}
"""What a difference says, by the check; `NEIGHBOURS` in any other."""


def checks(context: GateContext) -> Iterator[Check]:
    """In float32 where the device offers it: what a neighbour leaks is far beyond its rounding."""
    single = context.device(context.sharpest)
    try:
        device = _lanes_of(context, context.sharpest)
    except Exception as error:
        if not refuses(error):
            raise
        yield Check("batch", NOT_JUDGED, f"the device runs one sequence at a time: {raised_text(error)}")
        return
    lanes = device.describe().lanes
    if lanes < 2:
        yield Check("batch", NOT_JUDGED, "the device has one lane")
        return
    ids = [prompt.ids for prompt in context.golden.manifest.case.prompts]
    if len(ids) < 2:
        yield Check("batch", INCONCLUSIVE, "the golden has one prompt: neighbours would be copies of it")
        return
    shortest_first = sorted(range(len(ids)), key=lambda number: len(ids[number]))
    yield from BatchChecks(context, device, single, shortest_first).all()
    if context.precision != EXACT and device.describe().precision == EXACT:
        yield repeated(context, _lanes_of(context, context.precision), shortest_first)


def _lanes_of(context: GateContext, precision: str) -> Device:
    """The device with lanes, fresh: as it is where it has some, else as many as it is asked for."""
    named = context.device(precision)
    return context.fresh(precision) if isinstance(named, Batched) else context.fresh(precision, lanes=LANES)


class BatchChecks:
    """The checks of one device.

    Args:
        device, single: with lanes; and what runs a sequence alone.
        prompts: all of the golden's, the shortest first; some sit in two lanes where there are fewer of them.
    """

    def __init__(self, context: GateContext, device: Device, single: Device, prompts: Sequence[int]) -> None:
        says = device.describe()
        self.context, self.lanes, self.k = context, list(range(says.lanes)), says.k
        self.ends, self.device = bool(says.eos), device
        self.within = _bound(context, says.precision)
        self.seating, self.single = Prompts(context.golden, device), Prompts(context.golden, single)
        self.prompts, self.longest = [prompts[lane % len(prompts)] for lane in self.lanes], prompts[-1]
        self.stays = [Stay(prompt, ROUNDS) for prompt in self.prompts]

    def all(self) -> Iterator[Check]:
        """Each seating against the first one, or against the sequences alone."""
        yield self.beside_others("joining and leaving", self._joining())  # the first: caches may grow once
        first = self.seating.seat(self.stays)
        yield _captured(first, self.context, View(self.device.describe().shown, self.within.names))
        yield self.same("the same again", first, self.seating.seat(self.stays))
        yield self.same("in other lanes", first, self.seating.seat(self.stays, self.lanes[::-1]))
        yield self.compared("in reverse order", first[::-1], self.seating.seat(self.stays[::-1]))
        by_itself = [self.single.alone(stay) for stay in self.stays]
        yield self.compared("beside nobody", first, by_itself)
        yield self.waiting()
        yield self.ending()
        if self.ends:
            yield self.beside_others("an end token of one", self._ending())
        some = [replace(stay, drafts=max(self.k - place, 0)) for place, stay in enumerate(self.stays)]
        yield self.beside_others("other numbers of drafts", some)
        case = self.context.golden.manifest.case
        yield error_check(self.device, [case.prompts[number].ids for number in self.prompts], case.max_new_tokens)
        copies = self.seating.seat([Stay(self.prompts[-1], ROUNDS)] * len(self.lanes))
        yield self.compared("one prompt in all lanes", copies[:1] * len(copies), copies)

    def waiting(self) -> Check:
        """The first sequence is left out of a round, once in the first lane, once in the last."""
        stays = [replace(self.stays[0], waits=len(VERBS) - 1), *self.stays[1:]]
        alone = [self.single.alone(stay) for stay in stays]
        now = [self.seating.seat(stays, lanes) for lanes in (self.lanes, self.lanes[::-1])]
        return self.compared("a lane that waits", alone * 2, [seat for seats in now for seat in seats])

    def ending(self) -> Check:
        """Budgets that are spent in one round after the other, each lane's first in turn."""
        stays = [self.seating.spent(prompt, place + 1) for place, prompt in enumerate(self.prompts)]
        turns = [self.lanes[first:] + self.lanes[:first] for first in self.lanes]
        now = [self.seating.seat(stays, lanes) for lanes in turns]
        alone = [self.single.alone(stay) for stay in stays]
        return self.compared("budgets of their own", alone * len(turns), [seat for seats in now for seat in seats])

    def _joining(self) -> list[Stay]:
        """Shorter prompts in all lanes; the longest joins where the first one ends, then each once more."""
        shorter = [prompt for prompt in self.prompts if prompt != self.longest]
        queue = [shorter[place % len(shorter)] for place in self.lanes] + [self.longest, *self.prompts]
        return [Stay(prompt, 1 if not place else 2 + place % 2) for place, prompt in enumerate(queue)]

    def _ending(self) -> list[Stay]:
        """The first sequence ends in a round in which another emits several tokens, if there is one."""
        lengths = [self.context.golden.manifest.case.prompts[prompt].generated.acceptance_length
                   for prompt in self.prompts[1:]]  # fmt: skip
        several = (place + 1 for place in range(ROUNDS) if any(one[place] > 1 for one in lengths if len(one) > place))
        first = Stay(self.prompts[0], next(several, ROUNDS), drafts=self.k, ends=True)
        return [first, *(replace(stay, drafts=self.k) for stay in self.stays[1:])]

    def beside_others(self, name: str, stays: Sequence[Stay]) -> Check:
        """A seating against the same sequences alone."""
        now = self.seating.seat(stays)  # before anything that is alone: its prompts may be longer
        return self.compared(name, [self.single.alone(stay) for stay in stays], now)

    def compared(self, name: str, before: Sequence[Seated], now: Sequence[Seated]) -> Check:
        """Each sequence in two seatings, within its bound."""
        return _check(name, _difference(before, now, self.within))

    def same(self, name: str, before: Sequence[Seated], now: Sequence[Seated]) -> Check:
        """As many rows in every product: the same bits are due."""
        return _check(name, _difference(before, now, self.within), WARN)


def repeated(context: GateContext, device: Device, prompts: Sequence[int]) -> Check:
    """The same seating twice in the context's own precision."""
    within = _bound(context, context.precision)
    stays = [Stay(prompt, ROUNDS) for prompt in prompts[: device.describe().lanes]]
    first, again = (Prompts(context.golden, device).seat(stays) for _ in range(2))
    return _check(f"the same again, {context.precision}", _difference(first, again, within), WARN)


def _bound(context: GateContext, precision: str) -> WithinNoise:
    return WithinNoise(context.golden.declared, precision, NoiseFloors(context.golden))


def _difference(before: Sequence[Seated], now: Sequence[Seated], within: WithinNoise) -> Difference[Seats]:
    found = Difference[Seats](within)
    for one, other in zip(before, now, strict=True):
        found.add(one.tensors, other.tensors, (one, other))
    return found


def _captured(seats: Sequence[Seated], context: GateContext, view: View) -> Check:
    """Whether each lane's tap was handed its own lane's tensors."""
    like = list(likenesses(seats, context.golden))
    name, wrong = "each lane's own tensors", [one for one in like if one.other is not None]
    if not like:
        due = any(view.shows(stage) for stage, named in view.declared.items() if not named.stage.exact)
        said = "no float stage is shown: nothing tells the lanes' tensors apart"
        return Check(name, INCONCLUSIVE if due else NOT_JUDGED, said)
    if not wrong:
        said = f"none of {len(like)} tensors in {len(seats)} lanes is like another lane's prompt"
        return Check(name, PASS, said, {"tensors": len(like)})
    one = wrong[0]
    own_id, other_id = (context.golden.manifest.case.prompts[number].id for number in (one.seat.prompt, one.other or 0))
    said = (
        f"lane {one.seat.lane} runs prompt {own_id} and shows {one.stage} of {other_id}: correlation {one.best:.3f} "
        f"with that, {one.own:.3f} with its own; {len(wrong)} tensors in all"
    )
    place = Place(one.stage, None, one.seat.prompt, one.round)
    return Check(name, FAIL, said, {"tensors": len(like), "wrong": len(wrong)}, place)


def _check(name: str, found: Difference[Seats], moved: str = PASS) -> Check:
    """What a difference means; `moved` where there is one within the bound."""
    figures = {"tensors": found.tensors, "moved": found.moved, "worst": min(found.worst, 1e30)}
    if not found.tensors:
        return Check(name, INCONCLUSIVE, "no tensor is shown", figures)
    if found.first is not None:
        return _failed(name, found.first, found.within, figures)
    if found.furthest is None:
        return Check(name, PASS, f"the same bits in all {found.tensors} tensors", figures)
    most = f"at most {found.within.said(found.furthest.stage, found.furthest.apart)} in {found.furthest.stage}"
    said = f"{found.moved} of {found.tensors} tensors have other bits, {most}"
    said += "" if moved == PASS else "; as many rows in every pass: the device does not repeat itself"
    return Check(name, moved, said, figures)


def _failed(name: str, at: DifferingRow[Seats], within: WithinNoise, figures: dict[str, Any]) -> Check:
    first, other = at.where
    far = "another value" if at.apart == float("inf") else within.said(at.stage, at.apart)
    where = f"lane {other.lane}" if first.lane == other.lane else f"lane {other.lane} (first in lane {first.lane})"
    meaning = MEANING.get(name.partition(",")[0], NEIGHBOURS)
    if name == "budgets of their own" and at.stage.startswith("accept."):
        meaning = "a lane ends with another's budget"
    said = f"prompt {first.prompt} in {where}, {at.stage} row {at.row}: {far}; {meaning}"
    return Check(name, FAIL, said, figures, Place(at.stage, None, first.prompt, at.round))
