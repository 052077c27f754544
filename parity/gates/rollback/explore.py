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
    History,
    HistoryLimits,
    RoundPlan,
    SequencePlan,
    TapError,
    calmer,
    histories,
    render,
)
from parity.gates.rollback.invariants import InvariantBroken
from parity.gates.rollback.play import HistoryPlayer
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
    """What came of it: distinct histories played, what they covered, what they broke; `tell` is told how many."""

    player: HistoryPlayer
    played: set[History] = field(default_factory=set)
    failures: dict[str, Failure] = field(default_factory=dict)
    poisons: bool = False
    errors: bool = True
    tell: Callable[[int], None] = lambda played: None

    def begin(self, history: History) -> None:
        """Count a history that is played now."""
        self.tell(len(self.played))
        self.played.add(history)

    def add(self, failure: Failure) -> None:
        """Keep it, and disturb no further in this way; poison needs verbs that can be called again."""
        self.poisons = self.poisons and failure.aspect != POISON and failure.aspect not in self.failures
        self.errors = self.errors and failure.aspect != ERRORS
        self.failures.setdefault(failure.aspect, replace(failure, number=len(self.played)))

    @property
    def wrong(self) -> Failure | None:
        """A failure without any disturbance: nothing else can be judged then."""
        return self.failures.get(ROWS) or self.failures.get(STATE)


def explore(
    player: HistoryPlayer, count: int, seed: int, progress: Callable[[int, int, str], None], what: str
) -> Exploration:
    """Play this many distinct histories, the same ones for the same seed: every plain case, then random ones.

    Poison and errors that break something are left out from then on, and the exploration starts anew, so that
    every aspect gets a verdict of its own; an undisturbed history that breaks ends it. A device whose verbs cannot be
    called again after an error is not disturbed.
    """
    again = player.device.describe().transactional
    poisons = again and isinstance(player.device, Poisonable)

    def tell(played: int) -> None:
        progress(min(played, count), count, what)

    exploration = Exploration(player, poisons=poisons, errors=again, tell=tell)
    with suppress(InvariantBroken):  # it counts each verb's stages; whether anything breaks is asked below
        player.play(_plain(player)[0])
    while not exploration.wrong:
        exploration.played.clear()
        random, tries, failure = Random(seed), 0, _first(exploration)
        while failure is None and len(exploration.played) < count and tries < 8:
            failure, tries = _search(exploration, count, random), tries + 1
        if failure is None:
            break
        exploration.add(failure)
    progress(count, count, "")
    return exploration


def _first(exploration: Exploration) -> Failure | None:
    """The failure of the first plain case that breaks."""
    for history in _cases(exploration.player, exploration.poisons, exploration.errors):
        exploration.begin(history)
        failure = judge_history(exploration.player, history)
        if failure:
            return failure
    return None


def _plain(player: HistoryPlayer) -> list[History]:
    """One round accepting each j of K from the shortest prompt, two from the longest."""
    rounds = [RoundPlan(right, player.k) for right in range(player.k + 1)]
    longest, budget = len(player.baselines) - 1, _budget(player)
    cases: list[History] = [(SequencePlan(0, budget, (round_,)),) for round_ in rounds]
    return cases + [(SequencePlan(longest, budget, (round_, round_)),) for round_ in rounds]


def _cases(player: HistoryPlayer, poisons: bool, errors: bool) -> list[History]:
    """The plain ones; then each disturbance once; then each change of K."""
    k, longest, cases = player.k, len(player.baselines) - 1, _plain(player)
    disturbed = [RoundPlan(1, k, rehearsed=True, poison=value) for value in (NAN, SENTINEL) if poisons]
    disturbed += [RoundPlan(1, k, error=TapError(verb, where)) for verb in VERBS if errors for where in (500, 999)]
    cases += [
        (SequencePlan(longest, _budget(player), (RoundPlan(1, k), round_, RoundPlan(0, k))),) for round_ in disturbed
    ]
    return cases + [(SequencePlan(longest, _budget(player), rounds),) for rounds in _changes(k) if player.varies]


def _changes(k: int) -> list[tuple[RoundPlan, ...]]:
    """K drops from K to each smaller one and rises again, everything accepted: most rows to run over with least room.

    Behind rounds of K = 0 the drafter has missed nothing.
    """
    most, none = RoundPlan(k, k), RoundPlan(0, 0, asked=0)
    fewer = [RoundPlan(j, j, asked=j) for j in range(1, k)]
    return [(most, none, most), (none, none, RoundPlan(1, k)), *((most, one, most) for one in fewer)]


def _search(exploration: Exploration, count: int, random: Random) -> Failure | None:
    """Draw until `count` distinct histories were played or one breaks, then shrink that one."""
    player = exploration.player
    drawn = histories(
        HistoryLimits(
            player.k, len(player.baselines), _budget(player), exploration.poisons, exploration.errors, player.varies
        )
    )
    broken: list[Failure] = []

    def breaks(history: History) -> bool:
        if not broken:
            if history in exploration.played or len(exploration.played) >= count:
                return False
            exploration.begin(history)
        failure = judge_history(player, history)
        if failure and (not broken or failure.aspect == broken[0].aspect):
            broken.append(failure)
        return failure is not None and failure.aspect == broken[0].aspect

    options = settings(
        max_examples=2 * (count - len(exploration.played)) + 10,  # some are drawn twice
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
    return judge_history(player, shortest) or broken[-1]


def _budget(player: HistoryPlayer) -> int:
    """The longest budget that leaves a whole round's true tokens behind it."""
    return max(max(baseline.asked for baseline in player.baselines) - player.k, 2)


def judge_history(player: HistoryPlayer, history: History) -> Failure | None:
    """Play a history; if it breaks, play it with fewer disturbances, so that the blame falls on the right one."""
    try:
        player.play(history)
    except InvariantBroken as wrong:
        last = wrong
    else:
        return None
    for aspect, kept in ((None, ()), (ERRORS, ("rehearsed",)), (POISON, ("rehearsed", "poison"))):
        less = calmer(history, *kept)
        try:
            player.play(less)
        except InvariantBroken as wrong:
            return _failure(player, aspect or wrong.aspect, less, wrong)
    return _failure(player, ERRORS, history, last)


def _failure(player: HistoryPlayer, aspect: str, history: History, wrong: InvariantBroken) -> Failure:
    line = render(history, [len(baseline.ids) for baseline in player.baselines])
    return Failure(aspect, line, wrong.message, wrong.place)
