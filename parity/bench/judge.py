"""What a bench says: whether speculation emits what plain decoding emits, and whether it is fast enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from parity.bench.baseline import baseline_of, needlessly_dear
from parity.bench.decoding import Sequenced
from parity.bench.figures import over
from parity.bench.records import BenchAxes, BenchCell, BenchTurn, BenchVerdict, Gated
from parity.bench.statistics import CONFIDENCE, ONE_RUN, Ratio

PASS: BenchVerdict = "pass"
FAIL: BenchVerdict = "fail"
INCONCLUSIVE: BenchVerdict = "inconclusive"
EXITS: dict[BenchVerdict, int] = {PASS: 0, FAIL: 1, INCONCLUSIVE: 3}
ONE_PROMPT = "one prompt: its repeats say nothing of another one"
Emitted = Mapping[str, Sequence[Sequence[int]]]
"""By prompt: every different list of tokens that it gave."""


def parted(axes: BenchAxes, mine: Emitted, plain: Emitted) -> Iterator[str]:
    """Where a cell's tokens differ from plain decoding's of the same device, or from repeat to repeat."""
    for name, seen in mine.items():
        if len(seen) > 1:
            at = _first_difference(seen[0], seen[1])
            yield f"prompt {name}: {len(seen)} different generations in its runs, from token {at} on"
            continue
        expected = plain.get(name, ())
        if axes.decoding != "plain" and len(expected) == 1 and list(seen[0]) != list(expected[0]):
            at = _first_difference(seen[0], expected[0])
            told = f"{_at(seen[0], at)}, not {_at(expected[0], at)}"
            yield f"prompt {name} parts from plain decoding at token {at}: {told}"


FEWER = 0.9
"""The rounds of a timed run over those of the watched one, at the least. Another program may round otherwise where
somebody watches, and a close draft fall the other way, now and then and either way. What drafts by what it answered
before, or otherwise where nobody watches, needs far fewer rounds."""


def otherwise(mine: Emitted, turns: Sequence[BenchTurn], watched: Mapping[str, Sequenced]) -> Iterator[str]:
    """Where a cell's tokens or rounds, which nobody watched, are not those of the run that somebody did."""
    for name, one in watched.items():
        seen = mine.get(name, ())
        if len(seen) == 1 and list(seen[0]) != list(one.tokens):
            at = _first_difference(seen[0], one.tokens)
            told = f"token {at} is {_at(seen[0], at)}, watched it is {_at(one.tokens, at)}"
            yield f"prompt {name}: where nobody watches {told}; what is timed is not what gates judge"
    repeats = len({turn.repeat for turn in turns}) or 1
    timed = sum(len(each.emitted) for turn in turns for each in turn.rounds) / repeats
    needed = sum(len(one.emitted) for one in watched.values())
    if 0 < timed < FEWER * needed:
        yield (
            f"{timed:g} rounds where nobody watches, {needed} in the first run, which somebody watches, of the same "
            "prompts: what is timed drafts otherwise, or by what it answered before"
        )


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _at(tokens: Sequence[int], place: int) -> str:
    return str(tokens[place]) if place < len(tokens) else "its end"


def gates(cells: Sequence[BenchCell], at_least: float, judged: Iterable[str]) -> Iterator[Gated]:
    """For every block and device: is speculation at its best K fast enough over plain decoding?

    The lower end of the interval decides. The best of n cells is the luckiest one, too: its limits have 1 - 0.05 / n of
    confidence each, so that n cells at exactly `at_least` pass together once in twenty.
    """
    names = tuple(judged)
    groups: dict[tuple[str, str, str], list[BenchCell]] = {}
    for cell in cells:
        if cell.axes.device in names:
            groups.setdefault((cell.axes.block, cell.axes.device, cell.axes.loop), []).append(cell)
    for (block, device, _), some in groups.items():
        if any(not cell.axes.plain for cell in some):
            yield _gated(block, device, some, at_least)


def _gated(block: str, device: str, some: Sequence[BenchCell], at_least: float) -> Gated:
    found = Gated(block=block, device=device, at_least=at_least, verdict=INCONCLUSIVE)
    shown = [(ratio.estimate, cell) for cell in some if cell.overall and (ratio := cell.overall.over_plain)]
    best = max(shown, key=lambda pair: pair[0])[1] if shown else None
    plain = baseline_of(best, some) if best else None
    if best is None or plain is None:
        return found.model_copy(update={"why": "no cell of it has a ratio to plain decoding"})
    ratio = over(best.turns, plain.turns, 1 - (1 - CONFIDENCE) / len(shown))
    prompts = {prompt for turn in best.turns for prompt in turn.prompts}
    verdict, why = _enough(ratio, at_least, len(prompts))
    if verdict == PASS and (dear := needlessly_dear(best, plain)):
        verdict, why = INCONCLUSIVE, dear
    chosen, held_out = _held_out([cell for _, cell in shown], some)
    told = {"cell": best.axes.name, "ratio": ratio, "chosen": chosen, "held_out": held_out}
    return found.model_copy(update=told | {"verdict": verdict, "why": why})


def _held_out(shown: Sequence[BenchCell], some: Sequence[BenchCell]) -> tuple[str, Ratio | None]:
    """The best cell of the odd repeats, and its ratio in the even ones: nothing of luck in the choice is in it."""
    found = {cell.axes.name: _halves(cell, plain) for cell in shown if (plain := baseline_of(cell, some))}
    odd = {name: ratios[1].estimate for name, ratios in found.items() if ratios[1]}
    best = max(odd, key=odd.__getitem__, default="")
    return best, found[best][0] if best else None


def _halves(cell: BenchCell, plain: BenchCell) -> list[Ratio | None]:
    """The ratio over plain decoding in the even repeats, and in the odd ones."""
    pairs = [[[turn for turn in one.turns if turn.repeat % 2 == odd] for one in (cell, plain)] for odd in (0, 1)]
    return [over(mine, theirs) if mine and theirs else None for mine, theirs in pairs]


def _enough(ratio: Ratio | None, at_least: float, prompts: int) -> tuple[BenchVerdict, str]:
    """Whether a ratio over so many prompts is at least that, and why where it is not shown to be."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return INCONCLUSIVE, ONE_RUN
    if ratio.low >= at_least:
        return (PASS, "") if prompts > 1 else (INCONCLUSIVE, ONE_PROMPT)
    if ratio.high < at_least:
        return FAIL, f"{at_least:g}x is excluded"
    return INCONCLUSIVE, f"the limits hold {at_least:g}x: more repeats or prompts"


def findings(cells: Sequence[BenchCell], gated: Sequence[Gated]) -> tuple[BenchVerdict, tuple[str, ...]]:
    """The verdict, joined by AND, and what does not pass, failures first."""
    wrong = [f"{cell.axes.name}: {said}" for cell in cells for said in cell.parted]
    slow = [_said(gate) for gate in gated if gate.verdict == FAIL]
    missing = [f"{cell.axes.name}: {said}" for cell in cells for said in (cell.error, cell.unseen) if said]
    unchecked = [f"{cell.axes.name}: no plain decoding to compare its tokens with" for cell in _unchecked(cells)]
    unclear = [_said(gate) for gate in gated if gate.verdict == INCONCLUSIVE]
    said = (*wrong, *slow, *missing, *unchecked, *unclear)
    verdict: BenchVerdict = FAIL if wrong or slow else INCONCLUSIVE if said or not cells else PASS
    return verdict, said or (() if cells else ("nothing was measured",))


def _unchecked(cells: Sequence[BenchCell]) -> Iterator[BenchCell]:
    """Cells with tokens whose device has none of plain decoding in the block."""
    plain = {(cell.axes.block, cell.axes.device) for cell in cells if cell.axes.plain and cell.turns}
    for cell in cells:
        if cell.turns and (cell.axes.block, cell.axes.device) not in plain:
            yield cell


def _said(gate: Gated) -> str:
    ratio = f"{gate.cell}: {gate.ratio} over plain decoding, {gate.at_least:g}x is asked for" if gate.ratio else ""
    return f"{ratio or f'{gate.block}/{gate.device}'}; {gate.why}"
