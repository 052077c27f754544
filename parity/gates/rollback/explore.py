"""Many random histories on one device; the first that breaks an invariant, shrunk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import Phase, Verbosity, find, settings
from hypothesis.errors import Flaky, NoSuchExample

from parity.compare.report import Place
from parity.gates.rollback.history import (
    NAN,
    SENTINEL,
    VERBS,
    Error,
    History,
    Limits,
    Round,
    Sequence,
    calmer,
    histories,
    render,
)
from parity.gates.rollback.invariants import Broken
from parity.gates.rollback.play import Player
from parity.seam import Poisonable

ROWS, STATE, POISON, ERRORS = "rows", "state", "poison", "errors"


@dataclass(frozen=True)
class Failure:
    """An invariant of this aspect does not hold: the shortest history found that shows it."""

    aspect: str
    history: str
    message: str
    place: Place | None
    number: int = 0

    def __str__(self) -> str:
        return f"history {self.number}: {self.history} → {self.message}"


@dataclass
class Exploration:
    """What came of it: distinct histories played, what they covered, what they broke."""

    player: Player
    played: set[History] = field(default_factory=set)
    failures: dict[str, Failure] = field(default_factory=dict)
    poisons: bool = False
    errors: bool = True

    def add(self, failure: Failure) -> None:
        """Keep it, and disturb no further in this way; poison needs verbs that can be called again."""
        self.poisons = self.poisons and failure.aspect != POISON and failure.aspect not in self.failures
        self.errors = self.errors and failure.aspect != ERRORS
        self.failures.setdefault(failure.aspect, replace(failure, number=len(self.played)))

    @property
    def wrong(self) -> Failure | None:
        """A failure without any disturbance: nothing else can be judged then."""
        return self.failures.get(ROWS) or self.failures.get(STATE)


def explore(player: Player, count: int, seed: int, progress: Callable[[int, int, str], None], what: str) -> Exploration:
    """Play this many distinct histories, the same ones for the same seed: every plain case, then random ones.

    Poison and errors that break something are left out from then on, and the exploration starts anew, so that
    every aspect gets a verdict of its own; an undisturbed history that breaks ends it.
    """
    found = Exploration(player, poisons=isinstance(player.device, Poisonable))
    with suppress(Broken):  # it counts each verb's stages; whether anything breaks is asked below
        player.play(_cases(player, False, False)[0])
    while not found.wrong:
        found.played.clear()
        random, tries, failure = Random(seed), 0, _first(found)
        while failure is None and len(found.played) < count and tries < 8:
            progress(len(found.played), count, what)
            failure, tries = _search(found, count, random), tries + 1
        if failure is None:
            break
        found.add(failure)
    progress(count, count, "")
    return found


def _first(found: Exploration) -> Failure | None:
    """The failure of the first plain case that breaks."""
    for history in _cases(found.player, found.poisons, found.errors):
        found.played.add(history)
        failure = judge(found.player, history)
        if failure:
            return failure
    return None


def _cases(player: Player, poisons: bool, errors: bool) -> list[History]:
    """One round accepting each j of K from the shortest prompt, two from the longest; then each disturbance once."""
    k, longest = player.k, len(player.truths) - 1
    plain = [Round(right, k) for right in range(k + 1)]
    found = [((Sequence(0, _budget(player), (one,))),) for one in plain]
    found += [(Sequence(longest, _budget(player), (one, one)),) for one in plain]
    disturbed = [Round(1, k, rehearsed=True, poison=value) for value in (NAN, SENTINEL) if poisons]
    disturbed += [Round(1, k, error=Error(verb, where)) for verb in VERBS if errors for where in (500, 999)]
    return found + [(Sequence(longest, _budget(player), (Round(1, k), one, Round(0, k))),) for one in disturbed]


def _search(found: Exploration, count: int, random: Random) -> Failure | None:
    """Draw until `count` distinct histories were played or one breaks, then shrink that one."""
    player = found.player
    drawn = histories(Limits(player.k, len(player.truths), _budget(player), found.poisons, found.errors))
    broken: list[Failure] = []

    def breaks(history: History) -> bool:
        if not broken:
            if history in found.played or len(found.played) >= count:
                return False
            found.played.add(history)
        failure = judge(player, history)
        if failure and (not broken or failure.aspect == broken[0].aspect):
            broken.append(failure)
        return bool(failure) and failure.aspect == broken[0].aspect

    options = settings(
        max_examples=2 * (count - len(found.played)) + 10,  # some are drawn twice
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    try:
        shortest = find(drawn, breaks, settings=options, random=random)
    except NoSuchExample:
        return None
    except Flaky:
        return replace(broken[0], message=f"{broken[0].message} (not every time: it depends on what ran before)")
    return judge(player, shortest) or broken[-1]


def _budget(player: Player) -> int:
    """The longest budget that leaves a whole round's true tokens behind it."""
    return max(max(truth.asked for truth in player.truths) - player.k, 2)


def judge(player: Player, history: History) -> Failure | None:
    """Play a history; if it breaks, play it with fewer disturbances, so that the blame falls on the right one."""
    try:
        player.play(history)
    except Broken as wrong:
        last = wrong
    else:
        return None
    for aspect, kept in ((None, ()), (ERRORS, ("rehearsed",)), (POISON, ("rehearsed", "poison"))):
        less = calmer(history, *kept)
        try:
            player.play(less)
        except Broken as wrong:
            return _failure(player, aspect or wrong.aspect, less, wrong)
    return _failure(player, ERRORS, history, last)


def _failure(player: Player, aspect: str, history: History, wrong: Broken) -> Failure:
    line = render(history, [len(truth.ids) for truth in player.truths])
    return Failure(aspect, line, wrong.message, wrong.place)
