"""Two references held against each other, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parity.compare.choices import judge_exact
from parity.compare.numbers import judge_numbers
from parity.compare.report import INCONCLUSIVE, NOT_JUDGED, PASS, Place, StageResult
from parity.compare.rows import StageRows
from parity.corroborate.common import Common
from parity.errors import UsageError
from parity.golden.manifest import Producer
from parity.golden.store import Dump
from parity.golden.trust import one_opinion
from parity.policy import Policy
from parity.stages import Named

AGREE, DISAGREE, UNSEEN = "agree", "disagree", "not compared"


@dataclass(frozen=True)
class Held:
    """One stage of two references: whether they agree, by how much, and where they first part."""

    stage: str
    verdict: str
    rows: int
    relative_l2: float | None = None
    worst_row: float | None = None
    place: Place | None = None
    why: str = ""


@dataclass(frozen=True)
class Pair:
    """Two references, by their places among those given.

    `shared` says of a stage what makes them one opinion there: then they cannot confirm each other, only differ.
    `prompts` are those that both ran, numbered as they first come in the goldens.
    """

    one: int
    other: int
    shared: dict[str, str]
    prompts: tuple[int, ...]
    stages: dict[str, Held]

    @property
    def both(self) -> frozenset[int]:
        """The two places."""
        return frozenset((self.one, self.other))


def hold(goldens: list[Dump], one: int, other: int, policy: Policy) -> Pair:
    """Compare every stage that both declare, in float32, by a policy's bounds.

    Raises:
        UsageError: they are not goldens of one case, or the policy bounds multiples of a noise that is not there.
    """
    common = Common(goldens[one], goldens[other])
    found = {name: _held(common, named, policy) for name, named in common.names.items()}
    shared = _shared(goldens[one].manifest.producer, goldens[other].manifest.producer, found)
    known = list(dict.fromkeys(prompt.ids for golden in goldens for prompt in golden.manifest.case.prompts))
    ours = goldens[one].manifest.case.prompts
    return Pair(one, other, shared, tuple(known.index(ours[number].ids) for number in common.prompts), found)


def _held(common: Common, named: Named, policy: Policy) -> Held:
    rows, lacking = common.rows(named)
    if apart := [one for one in lacking if not one.both]:
        return Held(named.name, DISAGREE, 0, place=apart[0].place, why=apart[0].what)
    if rows is None:
        return Held(named.name, UNSEEN, 0, why="there is no round in which both can be compared")
    held = _judged(rows, policy)
    if held.verdict == AGREE and lacking:
        return replace(held, verdict=UNSEEN, place=lacking[0].place, why="neither has it, though both declare it")
    return held


def _judged(rows: StageRows, policy: Policy) -> Held:
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


def _told(result: StageResult, findings: list) -> Held:
    figures = result.stage, result.rows, result.relative_l2, result.x.get("worst_row")
    stage, rows, l2, worst = figures
    if findings:
        first = findings[0]
        place = Place(stage, result.layer, first.prompt, first.round)
        return Held(stage, DISAGREE, rows, l2, worst, place, first.message)
    if result.verdict in (INCONCLUSIVE, NOT_JUDGED):
        return Held(stage, UNSEEN, rows, l2, worst, why=result.note or "the policy does not judge it")
    if result.verdict != PASS:
        why = f"{result.choices['bug']} of {rows} rows" if result.choices else f"relative L2 {l2:.1e}"
        return Held(stage, DISAGREE, rows, l2, worst, result.first, why)
    return Held(stage, AGREE, rows, l2, worst)


def _shared(one: Producer, other: Producer, found: dict[str, Held]) -> dict[str, str]:
    """What makes two producers one opinion, by stage: source that both have there, or the same bits everywhere else."""
    shared = {name: why for name in found if (why := one_opinion(one.of(name), other.of(name)))}
    apart = {name: held for name, held in found.items() if name not in shared}
    return shared | dict.fromkeys(apart, same) if (same := _copied(apart)) else shared


def _copied(found: dict[str, Held]) -> str:
    """Independent arithmetic differs in the last bit somewhere; all of it alike is one answer, given twice."""
    numbers = [held for held in found.values() if held.relative_l2 is not None]
    same = numbers and all(held.relative_l2 == 0.0 for held in numbers)
    return "all their tensors are the same bit for bit" if same else ""
