"""Every greedy choice: against the golden's, against the device's own logits, and on planted ties."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity.compare.choices import SAME
from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, Place
from parity.compare.scores import SCORES
from parity.compare.vocabulary import DraftVocabulary
from parity.families import MODEL, family_of
from parity.gates.context import GateContext
from parity.gates.decisions_rows import JudgedRows, judge_rows, own_choices, read_draft_vocabulary
from parity.gates.gate import Check
from parity.golden.trust import refuse_shared
from parity.rounds import untapped
from parity.seam import Looping
from parity.stages import ACCEPT_EMITTED, ACCEPT_LENGTH, DRAFT_TOKENS, TARGET_TOKENS, VERIFY_TOKENS

GROUPS = {"target": TARGET_TOKENS, "verify": VERIFY_TOKENS, "drafter": DRAFT_TOKENS}
FORCED = (TARGET_TOKENS, VERIFY_TOKENS, DRAFT_TOKENS, ACCEPT_LENGTH, ACCEPT_EMITTED)


def checks(context: GateContext) -> Iterator[Check]:
    """The three groups of logits of the chained run, its own consistency, and the tie rule on the device itself."""
    golden, run = context.golden, context.run("chained")
    refuse_shared(golden.manifest.producer, run.manifest.producer)
    groups, family = dict(GROUPS), family_of(golden.manifest.model.family)
    if MODEL in family.has:
        vocabulary = read_draft_vocabulary(golden)
    else:
        vocabulary = DraftVocabulary(np.empty(0, np.int64), "no draft logits")
        del groups["drafter"]
        yield Check("drafter", NOT_JUDGED, f"a {family.name} drafter has no logits; its drafts are an exact stage")
    free = [stage for stage in FORCED if stage not in run.manifest.case.forced]
    own = isinstance(context.device(), Looping)
    judged = {name: judge_rows(context.basis("chained"), run, stage, vocabulary) for name, stage in groups.items()}
    if not own and "drafter" in judged and all(map(_same, judged.values())):
        free = []  # no difference, and so no row with another context
    for name, rows in judged.items():
        yield _group(name, rows, run.manifest.case.precision, free, own)
    yield own_choices(golden, run, vocabulary)
    yield planted_ties(context, vocabulary, [*groups.values()])


def _same(judged: JudgedRows) -> bool:
    """Whether there are rows, and each holds the golden's choice."""
    return bool(judged.verdict.size and (judged.verdict == SAME).all() and not judged.lack)


def _group(name: str, judged: JudgedRows, precision: str, free: list[str], own: bool) -> Check:
    """One group of rows under the tie rule; in float32 every choice must be the golden's.

    Args:
        free: stages that were not forced: rows behind a difference in them have another context.
        own: the device's loop is one piece, and continues with its own choices by its nature.
    """
    figures = judged.figures()
    if name == "drafter":
        figures["slots"] = {_slot(slot): judged.of(judged.slot == slot).figures() for slot in np.unique(judged.slot)}
    bad = judged.bugs | ~judged.finite | (precision == "float32") & (judged.verdict != SAME)
    said, place = _line(figures), None
    if bad.any():
        first = min(np.flatnonzero(bad), key=lambda row: (judged.round[row], judged.prompt[row], judged.position[row]))
        place = Place(judged.stage, None, *(int(x[first]) for x in (judged.prompt, judged.round, judged.position)))
    verdict = FAIL if bad.any() else PASS
    unforced = f"{free[0]} was not forced: rows behind a difference have another context" if free else ""
    if free and own:
        unforced = f"the device's loop is one piece and continues with its own choices: {unforced}"
    if lack := "; ".join(reason for reason in (judged.lack, unforced) if reason):
        missing = NOT_JUDGED if own and not judged.lack else INCONCLUSIVE
        verdict, said = (FAIL if bad.any() else missing), f"{lack}; {said}"
    return Check(_title(name, figures), verdict, said, figures, place)


def _slot(slot: int) -> str:
    return f"MTP {slot}" if slot else "NTP"


def _title(name: str, figures: dict[str, Any]) -> str:
    if "slots" not in figures:
        return f"{name}, {figures['rows']} rows"
    differ = ", ".join(f"{slot} {counts['rows'] - counts['same']}" for slot, counts in figures["slots"].items())
    return f"{name}, {figures['rows']} rows (differing: {differ})"


def _line(f: dict[str, Any]) -> str:
    """Counts, regret, divergence, overlap and the largest difference."""
    if not f["rows"]:
        return "no row to judge"
    counts = f"{f['same']} same, {f['tie']} tie ({f['tie_at_two_ulp']} at two ULP), {f['noise']} noise, {f['bug']} bug"
    overlap = "/".join(f"{100 * share:.1f}" for share in f["overlap"].values())
    return (
        f"{counts}; regret 0 in {f['regret_zero']}, mean {f['regret_mean']:.2g}, max {f['regret_max']:.2g}; "
        f"KL mean {f['kl_mean']:.2g}, max {f['kl_max']:.2g} nats; top-1/5/50 {overlap} %; "
        f"logits within {100 * f['largest_relative']:.2g} %"
    )


TIED_ROUNDS = 3
PARTS = 8
"""Tied columns lie in different eighths of the vocabulary: no sharding over 2, 4 or 8 ranks keeps them together."""

TOKENS = {scores: tokens for tokens, scores in SCORES.items() if tokens.endswith("tokens")}


@dataclass(frozen=True)
class WrongChoice:
    """A row in which another token than the lowest of the tied ones came out."""

    stage: str
    round: int
    row: int
    token: int
    tied: tuple[int, ...]


@dataclass
class PlantedTies:
    """A tap that makes every row of logits tie and compares the tokens that come out with the ties.

    Args:
        vocabulary: of the draft logits; they are tied only where the lowest column is the lowest id.
        ends: ids that end a generation; they are never among the tied ones.
        rng: which columns tie.
    """

    vocabulary: DraftVocabulary
    ends: Sequence[int]
    rng: np.random.Generator
    round: int = 0
    tied: dict[str, np.ndarray] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    wrong: list[WrongChoice] = field(default_factory=list)

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        """Logits [R, X] come back tied in three columns a row; tokens are looked at."""
        return self.rows(stage, value, 0, len(value))

    def rows(self, stage: str, value: np.ndarray, first: int, total: int) -> np.ndarray:
        """The same for a pass of a chain, as `parity.seam.RowTap` has it."""
        if stage in self.tied:
            self.look(stage, value, first if len(value) < total else None)
        ids = self._ids(stage, value.shape[1]) if stage in TOKENS else np.empty(0)
        free = np.flatnonzero((ids >= 0) & ~np.isin(ids, self.ends))
        if len(free) < PARTS:
            return value
        columns = np.stack([self._columns(free, first + row) for row in range(len(value))])
        before = self.tied[TOKENS[stage]][:first] if first else np.empty((0, columns.shape[1]), ids.dtype)
        self.tied[TOKENS[stage]] = np.concatenate([before, ids[columns]])
        tied = value.copy()
        np.put_along_axis(tied, columns, _above(value), axis=1)
        return tied

    def look(self, stage: str, tokens: Sequence[int] | np.ndarray, first: int | None = None) -> None:
        """Compare tokens [R] with the ties of this stage's rows from `first` on; of the last R rows without it."""
        rows = slice(-len(tokens), None) if first is None else slice(first, first + len(tokens))
        tied = self.tied.get(stage, np.empty((0, 3), np.int64))[rows]
        self.counts[stage] = self.counts.get(stage, 0) + len(tied)
        for row, (token, due) in enumerate(zip(np.asarray(tokens).tolist(), tied.tolist(), strict=False)):
            if token != min(due):
                self.wrong.append(WrongChoice(stage, self.round, row, token, tuple(due)))

    def _ids(self, stage: str, width: int) -> np.ndarray:
        """The id of each column; none where draft columns are out of order."""
        if not stage.startswith("drafter"):
            return np.arange(width)
        return self.vocabulary.tokens if self.vocabulary.ascending else np.empty(0, np.int64)

    def _columns(self, free: np.ndarray, row: int) -> np.ndarray:
        """Three columns, ascending: in three eighths of the vocabulary, at its ends and middle, or neighbours.

        These are the last ones once: whoever can never choose them chooses none of the tied.
        """
        if row % 3 == 1:
            return free[[0, len(free) // 2, -1]]
        if row % 3 == 2:
            start = len(free) - 3 if row == 2 else int(self.rng.integers(len(free) - 2))
            return free[start : start + 3]
        eighths = np.array_split(free, PARTS)
        return np.array([self.rng.choice(eighths[part]) for part in np.sort(self.rng.permutation(PARTS)[:3])])


def planted_ties(context: GateContext, vocabulary: DraftVocabulary, due: Sequence[str]) -> Check:
    """Prefill and a few rounds on the golden's shortest prompt, every row of logits tied.

    Args:
        due: stages of tokens that logits choose.
    """
    device = context.device()
    says, case = device.describe(), context.golden.manifest.case
    ids = min((prompt.ids for prompt in case.prompts), key=len)
    ties = PlantedTies(vocabulary, says.eos, np.random.default_rng(context.seed))
    budget = min(TIED_ROUNDS * (says.k + 1) + 1, says.max_positions - len(ids) - says.k)
    first = device.prefill(ids, budget, ties)
    ties.look(TARGET_TOKENS, [first])
    last, emitted = int(first), 1
    while ties.round < TIED_ROUNDS and emitted < budget and last not in says.eos:
        ties.round += 1
        ties.tied.clear()
        drafts = device.draft(ties)
        ties.look(DRAFT_TOKENS, drafts)
        tokens = device.verify(drafts, ties)
        ties.look(VERIFY_TOKENS, tokens)
        fresh = device.commit(drafts, tokens, untapped)
        last, emitted = int(fresh[-1]), emitted + len(fresh)
    return _tie_check(ties, due)


def _above(logits: np.ndarray) -> np.ndarray:
    """A power of two above every logit of a row, [R, 1]: exact in every dtype."""
    largest = np.abs(logits.astype(np.float64)).max(axis=1, keepdims=True)
    above: np.ndarray = np.exp2(np.ceil(np.log2(largest + 1)) + 1).astype(logits.dtype)
    return above


def _tie_check(ties: PlantedTies, due: Sequence[str]) -> Check:
    name, total = "planted ties", sum(ties.counts.values())
    figures = {"rows": ties.counts, "wrong": len(ties.wrong)}
    if ties.wrong:
        first = min(ties.wrong, key=lambda wrong: wrong.round)
        deaf = "none of them: it does not continue with what the tap returns, or never chooses these"
        what = "one of them" if first.token in first.tied else deaf
        said = f"{len(ties.wrong)} of {total} tied rows: {first.tied} tie and {first.token} is chosen, {what}"
        return Check(name, FAIL, said, figures, Place(first.stage, None, 0, first.round))
    missing = [stage for stage in TOKENS.values() if stage in due and not ties.counts.get(stage)]
    said = ", ".join(f"{count} rows of {stage}" for stage, count in ties.counts.items())
    said += " tied in three columns: the lowest id won"
    if missing:
        return Check(name, INCONCLUSIVE, f"not tied: {', '.join(missing)}; {said}", figures)
    return Check(name, PASS, said, figures)
