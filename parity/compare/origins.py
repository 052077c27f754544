"""What wrong rows hold instead of their own values: zeros, or another row that is right in its own place.

A buffer that was not cleared, an index that is off, a layer's or a head's values at another one's place leave true
values where they do not belong. Each wrong row is compared with every row of the golden that has its size, and, bit
for bit, with what the device itself showed before. What is said of a stage is the simplest step from a row to what it
holds that most of them share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parity.compare.rows import StageRows, stage_rows
from parity.compare.units import VALUES, Units, alike, parts_of
from parity.golden.views import DumpView
from parity.stages import Named

WIDTH = 4
"""Numbers of a row from which two rows are not near each other by chance; of ids as many different rows are needed."""

MOST = 256
"""Wrong rows that are looked at."""

MATCHES = 64
"""Rows that one may hold: more are alike among themselves, and say no more."""

SHARED = 0.9
"""A step that so many of the wrong rows share is what happened; fewer are told by an example."""

BLOCKS = 4
"""Blocks of rows that are told; of more it is said how many there are."""

STEPS, LEAST = 3, 0.1
"""Steps that rows may share by turns, as those of a pair that are exchanged, and the share of the rows of each."""


@dataclass(frozen=True, order=True)
class Step:
    """From a row to what it holds: to a place as far off in each of these, or to one and the same place (`fixed`).

    By its index a row is one of its pass, or of the prefill's (`first`).
    """

    stage: int
    prompt: int
    round: int
    row: int
    part: int
    by_index: bool = False
    first: bool = False
    fixed: bool = False

    @property
    def simple(self) -> tuple[int, ...]:
        """Larger for a step that says less: this stage, no row of the prefill, few differences, near, by position and
        not by row."""
        apart = [abs(number) for number in (self.prompt, self.round, self.row, self.part)]
        differs = -sum(map(bool, apart)), -sum(apart), -self.by_index
        return -self.fixed, -int(self.stage > 0), -self.first, *differs


@dataclass(frozen=True)
class HeldInstead:
    """What wrong rows hold: in words, and the share of those looked at that does."""

    says: str
    share: float

    @property
    def by_all(self) -> bool:
        """Whether each of them does."""
        return self.share == 1

    @property
    def by_most(self) -> bool:
        """Whether so many of them do that it is what happened."""
        return self.share >= SHARED

    def __str__(self) -> str:
        return self.says


def held_instead(golden: DumpView, run: DumpView, named: Named) -> HeldInstead | None:
    """What the wrong rows of a stage hold; None where that is nothing known."""
    rows = stage_rows(golden, run, named)
    if rows is None or rows.golden.size > VALUES or not np.isfinite(rows.device.astype(np.float64)).all():
        return None
    parts = parts_of(golden, rows)
    searches = (_Search(golden, run, rows, count) for count in dict.fromkeys((1, parts)))
    return next(filter(None, (search.told() for search in searches)), None)


class _Search:
    """The wrong rows of one stage, or wrong parts of them, and what they may hold."""

    def __init__(self, golden: DumpView, run: DumpView, rows: StageRows, parts: int) -> None:
        self.golden, self.rows, self.parts, self.mode = golden, rows, parts, run.manifest.case.mode
        self.own, self.shown = Units.of([(rows, parts)], "golden"), Units.of([(rows, parts)], "device")
        self.width = self.own.values.shape[1]
        self.wrong = np.flatnonzero(self.own.wrong(self.shown, run.manifest.case.precision))
        self.looked = self.wrong
        if len(self.wrong) > MOST:  # at random: every third of three taps is one tap
            self.looked = np.sort(np.random.default_rng(0).choice(self.wrong, MOST, replace=False))
        self.what = "row" if parts == 1 else "tap" if rows.named.stage.axes[1:] == ("TH",) else "head"

    def told(self) -> HeldInstead | None:
        """What they hold."""
        if not len(self.wrong):
            return None
        zero = int(self._zeros().sum())
        if zero >= SHARED * len(self.looked):
            return self._told_of(zero, "zeros")
        stages, held = self._held()
        told = self._shared(stages, held, "") or self._shared(*self._kept(), ", as the device itself showed it")
        if self.rows.named.stage.cache and not (told and told.by_most):
            return self._in_blocks(stages, held) or told
        return told

    def _zeros(self) -> np.ndarray:
        """Of each unit looked at whether it holds zeros only, [n]; ids hold none."""
        return np.asarray(~self.shown.values[self.looked].any(axis=1)) & (self.rows.floor is not None)

    def _in_blocks(self, stages: tuple[str, ...], held: Sequence[np.ndarray]) -> HeldInstead | None:
        """What neighbouring rows of a cache hold, block by block: rows that were written elsewhere, and what stands
        where none was. None where many hold nothing known, or where neighbours have nothing in common."""
        if len(self.looked) < len(self.wrong):
            self.looked = self.wrong[:MOST]
            stages, held = self._held()
        blocks: list[tuple[str, list[int]]] = []
        for place, zero in enumerate(self._zeros().tolist()):
            step = None if zero else max(self._moves(place, held), key=lambda step: step.simple, default=None)
            if not zero and step is None:
                continue
            says = "zeros" if step is None else self._says(step, stages)
            if not (blocks and blocks[-1][0] == says and self._follows(blocks[-1][1][-1], place)):
                blocks.append((says, []))
            blocks[-1][1].append(place)
        count = sum(len(places) for _, places in blocks)
        if self.width < WIDTH or count < max(2 * len(blocks), SHARED * len(self.looked)):
            return None
        said = [f"{self._span(places)} {says}" for says, places in blocks[:BLOCKS]]
        rest = f" and so on ({len(blocks)} blocks)" if len(blocks) > BLOCKS else ""
        return self._told_of(count, f"others' values or zeros, in blocks: {', '.join(said)}{rest}")

    def _moves(self, place: int, held: Sequence[np.ndarray]) -> Iterator[Step]:
        """The steps to what a unit holds, whichever of the stages that a cache is filled from has it."""
        return (replace(step, stage=0) for step in self._of(place, held) if not step.fixed)

    def _follows(self, one: int, other: int) -> bool:
        """Whether a unit looked at stands behind another one of the same head, in the same round of a prompt."""
        apart = self.own.labels[self.looked[other]] - self.own.labels[self.looked[one]]
        return bool(apart[[1, 2, 3, 5]].tolist() == [0, 0, 1, 0])

    def _span(self, places: Sequence[int]) -> str:
        """The positions of units beside each other, and of which round they are."""
        first, last = (self.own.labels[self.looked[place]].tolist() for place in (places[0], places[-1]))
        to = f" to {last[3]}" if last[3] > first[3] else ""
        return f"position{'s' * bool(to)} {first[3]}{to} of round {first[2]}"

    def _held(self) -> tuple[tuple[str, ...], list[np.ndarray]]:
        """Stages, and of each unit looked at the labels of the golden's units that it holds, [n, 6]."""
        pool = Units.of(
            list(alike(self.golden, self.rows.named, self.rows.golden.shape[1:], self.width, self.mode)), "golden"
        )
        given = self.shown.values[self.looked]
        found = pool.equal(given) if self.rows.floor is None else pool.near(given, self.own.values[self.looked])
        return pool.stages, [pool.labels[units[:MATCHES]] for units in found]

    def _kept(self) -> tuple[tuple[str, ...], list[np.ndarray]]:
        """The same of what the device showed before, bit for bit, in the place of another row."""
        seen: dict[bytes, list[int]] = defaultdict(list)
        for unit, value in enumerate(self.shown.values):
            seen[value.tobytes()].append(unit)
        kept = []
        for unit in self.looked.tolist():
            same = seen[self.shown.values[unit].tobytes()] if self.width >= WIDTH else []
            kept.append(self.shown.labels[[other for other in same if self._earlier(other, unit)]])
        return self.shown.stages, kept

    def _earlier(self, one: int, other: int) -> bool:
        """Whether a unit is of an earlier round or prompt than another, and not the same in the golden."""
        first, then = (tuple(self.own.labels[unit, 1:3].tolist()) for unit in (one, other))
        return first < then and bool((self.own.values[one] != self.own.values[other]).any())

    def _shared(self, stages: tuple[str, ...], held: Sequence[np.ndarray], whose: str) -> HeldInstead | None:
        """The step that most units share, then the one of each head or tap, a few steps by turns, or an example."""
        step, count = self._commonest(range(len(held)), held)
        if step is None or (self.width < WIDTH and not self._telling(step, count)):
            return None
        if count >= SHARED * len(self.looked):
            return self._told_of(count, f"{self._says(step, stages)}{whose}")
        if self.parts > 1 and (told := self._reshaped(held, whose) or self._by_part(stages, held, whose)):
            return told
        if turns := self._by_turns(stages, held, whose):
            return turns
        if 2 * count >= len(self.looked):
            return self._told_of(count, f"{self._says(step, stages)}{whose}")
        holding = [place for place, labels in enumerate(held) if len(labels)]
        if 2 * len(holding) < len(self.looked):
            return None
        stage, prompt, round_, position, _, part = held[holding[0]][0].tolist()
        example = self._says(Step(stage, prompt, round_, position, part, fixed=True), stages)
        where = self._place(*self.own.labels[self.looked[holding[0]], [1, 2, 3, 5]].tolist())
        return self._told_of(len(holding), f"others' values, the one at {where} {example}{whose}")

    def _by_turns(self, stages: tuple[str, ...], held: Sequence[np.ndarray], whose: str) -> HeldInstead | None:
        """The few steps of which each unit shares one; None where many share none of them."""
        left, said = [*range(len(held))], list[str]()
        while left and len(said) < STEPS:
            step, count = self._commonest(left, held)
            if step is None or step.fixed or count < max(WIDTH, LEAST * len(held)):
                break
            said.append(f"{self._says(step, stages)} ({count})")
            left = [place for place in left if step not in self._of(place, held)]
        total = len(held) - len(left)
        if len(said) < 2 or self.width < WIDTH or total < SHARED * len(held):
            return None
        return self._told_of(total, f"by turns {', '.join(said)}{whose}")

    def _reshaped(self, held: Sequence[np.ndarray], whose: str) -> HeldInstead | None:
        """Units of a pass that lie part by part and are read row by row, or the other way."""
        by_part = f"{self.what} by {self.what}"
        for lie, read in ((by_part, "row by row"), ("row by row", by_part)):
            sizes: dict[tuple[int, int], Counter[int | None]] = defaultdict(Counter)
            whatever = 0
            for place, labels in enumerate(held):
                _, prompt, round_, _, row, part = self.own.labels[self.looked[place]].tolist()
                there = labels[(labels[:, :3] == [0, prompt, round_]).all(axis=1)][:, 4:].tolist()
                found = {size for other in there for size in _rows_read((row, part), other, self.parts, lie == by_part)}
                whatever += None in found
                sizes[prompt, round_].update(found if None not in found else ())
            telling = sum(max(each.values(), default=0) for each in sizes.values())
            holding = sum(map(bool, map(len, held)))  # the others are of rows that no stage shows
            count = telling + whatever
            if telling >= WIDTH and 2 * count >= len(held) and count >= SHARED * holding:
                says = f"what is there where a pass lies {lie} and is read {read}: a reshape without a transpose"
                return HeldInstead(f"{self._counted(count)} {says}{whose}", count / holding)
        return None

    def _of(self, place: int, held: Sequence[np.ndarray]) -> set[Step]:
        """All steps to what a unit holds."""
        return {step for label in held[place].tolist() for step in self._steps(self.looked[place], label)}

    def _commonest(self, places: Sequence[int], held: Sequence[np.ndarray]) -> tuple[Step | None, int]:
        """The step that most of some units share, the simplest of several, and how many do."""
        steps: Counter[Step] = Counter()
        for place in places:
            steps.update(self._of(place, held))
        return max(steps.items(), key=lambda item: (item[1], item[0].simple), default=(None, 0))

    def _by_part(self, stages: tuple[str, ...], held: Sequence[np.ndarray], whose: str) -> HeldInstead | None:
        """What most units of each wrong head or tap hold; None where one of them holds nothing in common."""
        parts, said, total = self.own.labels[self.looked, 5], [], 0
        for part in np.unique(parts).tolist():
            places = np.flatnonzero(parts == part).tolist()
            step, count = self._commonest(places, held)
            if step is None or step.fixed or 2 * count < len(places):
                return None
            said.append(f"{self.what} {part} {self._says(step, stages)}")
            total += count
        return self._told_of(total, f"others' values: {'; '.join(said)}{whose}")

    def _steps(self, unit: int, other: Sequence[int]) -> Iterator[Step]:
        """The ways to say where a unit is, from another one."""
        stage, prompt, round_, position, _, part = other
        apart = (np.array(other) - self.own.labels[unit]).tolist()
        parts = apart[5] if part >= 0 else 0
        yield Step(stage, apart[1], apart[2], apart[3], parts)
        if not self.rows.named.stage.cache:
            yield Step(stage, apart[1], apart[2], apart[4], parts, by_index=True)
            if apart[2] < 0 and not round_:
                yield Step(stage, apart[1], 0, apart[4], parts, by_index=True, first=True)
            if apart[2] and apart[3]:
                yield Step(stage, apart[1], 0, apart[3], parts)  # a sequence has a position once, whatever the round
        yield Step(stage, prompt, round_, position, part, fixed=True)

    def _telling(self, step: Step, count: int) -> bool:
        """Whether ids tell anything: one is another's by chance, several of one step are not."""
        distinct = len(np.unique(self.shown.values[self.looked], axis=0))
        return not step.fixed and count >= SHARED * len(self.looked) and distinct >= WIDTH

    def _told_of(self, count: int, what: str) -> HeldInstead:
        """What so many of those looked at hold."""
        return HeldInstead(f"{self._counted(count)} {what}", count / len(self.looked))

    def _counted(self, count: int) -> str:
        """How many of the wrong ones hold something; of those looked at, where that is a sample."""
        of = len(self.looked)
        if len(self.wrong) == 1:
            return f"the wrong {self.what} holds"
        sample = f" looked at ({len(self.wrong)} in all)" if of < len(self.wrong) else ""
        return f"{f'all {count}' if count == of else f'{count} of {of}'} wrong {self.what}s{sample} hold"

    def _says(self, step: Step, stages: tuple[str, ...]) -> str:
        """A step in words."""
        stage = stages[step.stage] if step.stage else "what belongs"
        if step.fixed:
            return f"{stage} at {self._place(step.prompt, step.round, step.row, step.part)}"
        row = "place in its pass" if step.by_index else "position"
        off = [(step.part, self.what), (step.row, row), (step.round, "round"), (step.prompt, "prompt")]
        told = [f"{_many(number, what)} {'before' if number < 0 else 'behind'}" for number, what in off if number]
        if step.first:
            return f"{stage} at {' and '.join(told) or 'the same place'} of the prefill"
        if not told:
            return f"the same {'head' if self.what == 'head' else 'row'} of {stage}"
        return f"{stage}{',' if step.stage else ''} {' and '.join(told)}"

    def _place(self, prompt: int, round_: int, position: int, part: int) -> str:
        alone = len(self.golden.manifest.case.prompts) == 1  # of several, cut to one: its number is another there
        where = f"position {position} of round {round_}" + ("" if alone else f", prompt {prompt}")
        return where if part < 0 else f"{where}, {self.what} {part}"


def _rows_read(own: tuple[int, int], other: Sequence[int], parts: int, by_part: bool) -> Iterator[int | None]:
    """How many rows a pass has, padding among them, where its unit `other` (row, part) is read at `own`, if it lies
    part by part (`by_part`) and is read row by row, or the other way: None for any number, nothing where none is."""
    (row, part), (there, piece) = own, other
    place, times = (row * parts + part - there, piece) if by_part else (there * parts + piece - row, part)
    if not times and not place:
        yield None
    if times and place % times == 0 and place // times > max(row, there):
        yield place // times


def _many(number: int, what: str) -> str:
    """A number of things; the plural is the first word's."""
    first, *rest = what.split(" ", 1)
    return " ".join([str(abs(number)), first if abs(number) == 1 else f"{first}s", *rest])
