"""Two references compared stage by stage, in the rounds in which both went the same way until then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parity.compare.choices import judge_exact
from parity.compare.numbers import judge_numbers
from parity.compare.report import INCONCLUSIVE, NOT_JUDGED, PASS, Place, StageResult
from parity.compare.rows import Clock, StageRows
from parity.compare.structure import Finding
from parity.errors import UsageError
from parity.golden.case import PromptCase
from parity.golden.producer import Producer
from parity.golden.ranks import replicas_differ
from parity.golden.trust import one_opinion
from parity.golden.views import DumpView
from parity.policy import Policy
from parity.stages import Named, dataflow

DRAFTS, LENGTH = "drafter.draft_tokens", "accept.length"


@dataclass(frozen=True)
class Lacking:
    """A tensor that only one of two goldens has, or that differs in kind; with `both` that neither of them has."""

    place: Place
    what: str
    both: bool = False


class Common:
    """Two goldens of one case, by prompts of the same token ids.

    References run by themselves: once one drafts otherwise, its rounds cut the text otherwise, and no row behind
    it means the same. A round counts while everything before it was emitted alike; in it, what the target computes
    counts if the drafts are alike, and what is kept of it if as many were accepted.

    Raises:
        UsageError: other checkpoints, K or budget, or no prompt in common.
    """

    def __init__(self, one: DumpView, other: DumpView):
        _same_case(one, other)
        self.one, self.other = one, other
        theirs = {prompt.ids: number for number, prompt in enumerate(other.manifest.case.prompts)}
        ours = enumerate(one.manifest.case.prompts)
        self.prompts = {number: theirs[prompt.ids] for number, prompt in ours if prompt.ids in theirs}
        if not self.prompts:
            raise UsageError(f"{one.folder} and {other.folder} have no prompt in common")
        declared = set(one.manifest.stages) & set(other.manifest.stages)
        self.names: Mapping[str, Named] = {name: named for name, named in one.declared.items() if name in declared}

    def rows(self, named: Named) -> tuple[StageRows | None, list[Lacking]]:
        """A stage's rows over all rounds that can be compared (the floor is the golden itself), and what is lacking."""
        pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        labels: list[tuple[int, int, int]] = []
        lacking: list[Lacking] = []
        for prompt, round_ in self._rounds(named):
            mine, its = self._both(prompt, round_, named.name)
            place = Place(named.name, named.layer, prompt, round_)
            what = self._unlike(named, prompt, round_, mine, its)
            if what or mine is None or its is None:
                lacking.append(Lacking(place, what, both=mine is None and its is None))
                continue
            pairs.append((mine, its))
            clock = Clock.of(self.one.manifest.case.prompts[prompt], self.one.manifest)
            first = clock.first(named.name, round_, 0)
            labels += [(prompt, round_, first + row) for row in range(len(mine))]
        if not labels:
            return None, lacking
        golden, device = (np.concatenate(side) for side in zip(*pairs, strict=True))
        floor = None if named.stage.exact else golden
        return StageRows(named, golden, device, floor, *np.array(labels).T), lacking

    def _unlike(
        self, named: Named, prompt: int, round_: int, mine: NDArray[Any] | None, its: NDArray[Any] | None
    ) -> str:
        """Why no value can be compared, in words; '' where it can."""
        if mine is None or its is None or mine.shape != its.shape:
            shapes = ["none" if side is None else str(list(side.shape)) for side in (mine, its)]
            return f"shapes {shapes[0]} and {shapes[1]}"
        if not all(_due(named, side) for side in (mine, its)):
            return f"dtypes {mine.dtype} and {its.dtype}"
        places = ((self.one, prompt), (self.other, self.prompts[prompt]))
        torn = [
            str(dump.folder)
            for dump, number in places
            if replicas_differ(dump.parts["float32", number, round_, named.name])
        ]
        return f"the ranks of {torn[0]} differ where they should hold the same" if torn else ""

    def _rounds(self, named: Named) -> Iterator[tuple[int, int]]:
        """(prompt, round) of the first golden where this stage means the same in both."""
        for prompt, its in self.prompts.items():
            cases = self.one.manifest.case.prompts[prompt], self.other.manifest.case.prompts[its]
            for round_ in range(max(Clock.of(case).rounds for case in cases)):
                if not _emitted_alike(*cases, round_):
                    break
                if dataflow([named], round_) and self._means_the_same(named, prompt, round_):
                    yield prompt, round_

    def _means_the_same(self, named: Named, prompt: int, round_: int) -> bool:
        side = named.stage.side
        if round_ == 0 or side == "drafter":
            return True
        if not self._alike(prompt, round_, DRAFTS):
            return False
        return side != "kv" or self._alike(prompt, round_, LENGTH)

    def _alike(self, prompt: int, round_: int, stage: str) -> bool:
        mine, its = self._both(prompt, round_, stage)
        return mine is not None and its is not None and np.array_equal(mine, its)

    def _both(self, prompt: int, round_: int, stage: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        mine = self.one.contents("float32", prompt, round_, stage)
        return mine, self.other.contents("float32", self.prompts[prompt], round_, stage)


def _emitted_alike(prompt: PromptCase, other: PromptCase, round_: int) -> bool:
    """Whether all that came out before a round is alike, and in the same rounds."""
    mine, its = Clock.of(prompt).emitted[1:], Clock.of(other).emitted[1:]
    before = max(round_ - 1, 0)
    count = min(round_, 1) + sum(mine[:before])
    return mine[:before] == its[:before] and _emitted(prompt)[:count] == _emitted(other)[:count]


def _emitted(prompt: PromptCase) -> tuple[int, ...]:
    return prompt.generation.emitted if prompt.generation else ()


def _due(named: Named, array: NDArray[Any]) -> bool:
    """Whether it has a dtype of a golden's truth: choices are integers, and nothing is narrower than float32."""
    return array.dtype.kind in "iu" if named.stage.exact else array.dtype in (np.float32, np.float64)


def _same_case(one: DumpView, other: DumpView) -> None:
    ours, theirs = one.manifest, other.manifest
    for dump in (one, other):
        if dump.manifest.kind != "golden":
            raise UsageError(f"{dump.folder} is a device's run: only references corroborate each other")
    made = [side.case for side in (ours, theirs)]
    cases = [(case.k, case.max_new_tokens, case.partial_kv, case.kv_cache) for case in made]
    if any(side.case.sampling for side in (ours, theirs)):
        raise UsageError(f"{one.folder} or {other.folder} samples: references corroborate each other on greedy tokens")
    if cases[0] != cases[1]:
        raise UsageError(
            f"{one.folder} and {other.folder} were made with another K, token budget, partial KV or format of caches"
        )
    for part in ("target", "drafter"):
        mine, its = getattr(ours.model, part), getattr(theirs.model, part)
        if (mine.config_digest, mine.weights_digest) != (its.config_digest, its.weights_digest):
            raise UsageError(f"{one.folder} and {other.folder} were dumped from different {part} checkpoints")


AGREE, DISAGREE, UNSEEN = "agree", "disagree", "not compared"


@dataclass(frozen=True)
class StageAgreement:
    """One stage of two references: whether they agree, by how much, and where they first part."""

    stage: str
    verdict: str
    rows: int
    relative_l2: float | None = None
    worst_row: float | None = None
    place: Place | None = None
    why: str = ""


@dataclass(frozen=True)
class ReferencePair:
    """Two references, by their places among those given.

    `shared` says of a stage what makes them one opinion there: then they cannot confirm each other, only differ.
    `prompts` are those that both ran, numbered as they first come in the goldens.
    """

    one: int
    other: int
    shared: dict[str, str]
    prompts: tuple[int, ...]
    stages: dict[str, StageAgreement]

    @property
    def both(self) -> frozenset[int]:
        """The two places."""
        return frozenset((self.one, self.other))


def hold(goldens: list[DumpView], one: int, other: int, policy: Policy) -> ReferencePair:
    """Compare every stage that both declare, in float32, by a policy's bounds.

    Raises:
        UsageError: they are not goldens of one case, or the policy bounds multiples of a noise that is not there.
    """
    common = Common(goldens[one], goldens[other])
    stages = {name: _held(common, named, policy) for name, named in common.names.items()}
    shared = _shared(goldens[one].manifest.producer, goldens[other].manifest.producer, stages)
    known = list(dict.fromkeys(prompt.ids for golden in goldens for prompt in golden.manifest.case.prompts))
    ours = goldens[one].manifest.case.prompts
    return ReferencePair(one, other, shared, tuple(known.index(ours[number].ids) for number in common.prompts), stages)


def _held(common: Common, named: Named, policy: Policy) -> StageAgreement:
    rows, lacking = common.rows(named)
    if apart := [one for one in lacking if not one.both]:
        return StageAgreement(named.name, DISAGREE, 0, place=apart[0].place, why=apart[0].what)
    if rows is None:
        return StageAgreement(named.name, UNSEEN, 0, why="there is no round in which both can be compared")
    held = _judged(rows, policy)
    if held.verdict == AGREE and lacking:
        return replace(held, verdict=UNSEEN, place=lacking[0].place, why="neither has it, though both declare it")
    return held


def _judged(rows: StageRows, policy: Policy) -> StageAgreement:
    """By the policy's bounds; every choice exactly: in float32 two references choose alike."""
    row = policy.row(rows.named.name, "chained")
    if rows.named.stage.exact:
        return _told(judge_exact(rows, row), [])
    if row.judge not in ("relative", "none"):
        raise UsageError(
            f"policy {policy.name} judges {rows.named.name} by {row.judge}; two references have relative bounds"
        )
    apart = rows.prompt < 0  # no row is set apart: neither reference is excused
    result, findings = judge_numbers(rows, apart, row)
    return _told(result, findings)


def _told(result: StageResult, findings: Sequence[Finding]) -> StageAgreement:
    figures = result.stage, result.rows, result.relative_l2, result.x.get("worst_row")
    stage, rows, l2, worst = figures
    if findings:
        first = findings[0]
        place = Place(stage, result.layer, first.prompt, first.round)
        return StageAgreement(stage, DISAGREE, rows, l2, worst, place, first.message)
    if result.verdict in (INCONCLUSIVE, NOT_JUDGED):
        return StageAgreement(stage, UNSEEN, rows, l2, worst, why=result.note or "the policy does not judge it")
    if result.verdict != PASS:
        why = f"{result.choices['bug']} of {rows} rows" if result.choices else f"relative L2 {l2:.1e}"
        return StageAgreement(stage, DISAGREE, rows, l2, worst, result.first, why)
    return StageAgreement(stage, AGREE, rows, l2, worst)


def _shared(one: Producer, other: Producer, stages: dict[str, StageAgreement]) -> dict[str, str]:
    """What makes two producers one opinion, by stage: source that both have there, or the same bits everywhere else."""
    shared = {name: why for name in stages if (why := one_opinion(one.of(name), other.of(name)))}
    apart = {name: held for name, held in stages.items() if name not in shared}
    return shared | dict.fromkeys(apart, same) if (same := _copied(apart)) else shared


def _copied(stages: dict[str, StageAgreement]) -> str:
    """Independent arithmetic differs in the last bit somewhere; all of it alike is one answer, given twice."""
    numbers = [held for held in stages.values() if held.relative_l2 is not None]
    same = numbers and all(held.relative_l2 == 0.0 for held in numbers)
    return "all their tensors are the same bit for bit" if same else ""
