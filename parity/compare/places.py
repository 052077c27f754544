"""Where an error sits and whose it is: the row, the head, the stage that no earlier stage excuses, and what other
references say of it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from parity.compare.passes import ChainPasses
from parity.compare.report import DISPUTED, FAIL, NOT_JUDGED, WARN, Place, StageResult
from parity.compare.rows import StageRows
from parity.compare.scores import scores_of
from parity.golden.manifest import Manifest
from parity.golden.views import DumpView, TrustedGolden
from parity.policy import Row
from parity.stages import Named, inputs


def labels(rows: StageRows, row: Row) -> dict[str, Any]:
    """What every result of this stage says of itself."""
    named = rows.named
    return dict(
        stage=named.name,
        family=named.stage.template,
        layer=named.layer,
        judge=row.judge,
        reason=row.reason,
        rows=len(rows.golden),
    )


def place_of(rows: StageRows, index: int) -> Place:
    """A row's labels, with the head of its largest error where the stage has a head axis."""
    head = None
    if {"N", "G"} & set(rows.named.stage.axes) and not rows.sketched:
        gap = rows.device[index].astype(np.float64) - rows.golden[index].astype(np.float64)
        head = int((gap**2).sum(axis=-1).argmax())
    prompt, round_, position = (int(label[index]) for label in (rows.prompt, rows.round, rows.position))
    return Place(rows.named.name, rows.named.layer, prompt, round_, position, head)


def first_of(rows: StageRows, bad: np.ndarray) -> int:
    """The earliest of the bad rows [R]: by round, then prompt, then position."""
    return min(np.flatnonzero(bad).tolist(), key=lambda row: (rows.round[row], rows.prompt[row], rows.position[row]))


def where(
    rows: StageRows,
    bad: np.ndarray,
    judged: np.ndarray,
    size: np.ndarray,
    first: int | None = None,
    unclear: np.ndarray | bool = False,
) -> dict[str, Any]:
    """The places of a result that does not pass: the first row, the worst one, and which rows are bad.

    Args:
        bad, judged: bool [R]; `unclear` are those that are neither bad nor clean.
        size: [R], how far a row is off.
        first: its number, where that is no bad row alone.
    """
    worst = int(np.where(judged & (bad if bad.any() else True), size, -np.inf).argmax())
    first = first_of(rows, bad) if first is None and bad.any() else worst if first is None else first
    return dict(
        first=place_of(rows, first),
        worst=place_of(rows, worst),
        bad_rows=int(bad.sum()),
        relation=_relation(rows.source, rows, bad, judged & ~unclear) if rows.source is not None else "",
    )


def _relation(golden: DumpView, rows: StageRows, bad: np.ndarray, judged: np.ndarray) -> str:
    from parity.compare.facts import Facts
    from parity.compare.relations import relation

    return relation(bad, judged, Facts.of(golden, rows))


GROWTH = 1.5
"""An inherited excess over the bound that is more than this multiple of the inputs' has `grown`: one stage's
own rounding moves the ratio by less (the bound that separates pass from warn, in x noise). An error with a
direction may grow where rounding does not, so growth alone accuses nobody."""

OVER_PRECISE = 0.25
"""Below a quarter of the noise a bfloat16 device is more exact than bfloat16 can be: it computes in
another precision than it says, or it was handed the answer."""

DISGUISED = "over-precise"
"""The mark of such a stage."""


SCORED = "scores"
"""The mark of a choice that is the best of wrong scores, which are within their bounds as a whole."""


Results = Mapping[str, StageResult]
"""Results by stage."""


def mark(results: Sequence[StageResult], golden: DumpView, mode: str) -> list[StageResult]:
    """Mark every stage beyond its bounds as `own`, `inherited` or of its `scores`, `step` or `spike`, and over-precise
    ones.

    A step persists in a stage that is computed from this one, a spike does not. What is inherited and more than
    its inputs' excess is `grown` too: only a local comparison can tell whether it adds an error of its own. A
    choice made from scores beyond their bounds is theirs, unless it contradicts them; where they are within their
    bounds it is of its `scores` still, in which elements are off that no bound sees. In a local comparison nothing is
    inherited. In a chain of passes all that an earlier pass shows is an input of the later ones, and nothing that first
    shows in a later one is.
    """
    names, passes = golden.declared, ChainPasses.of(golden)
    by_name = {result.stage: result for result in results}
    sources = {name: judged_inputs(name, names, by_name) for name in by_name}
    consumers: dict[str, list[str]] = {}
    for name, before in sources.items():
        for source in before:
            consumers.setdefault(source, []).append(name)
    marked, upstream = [], behind(names) if mode != "local" else {}
    for result in results:
        direct = _before(result, sources[result.stage], by_name, passes)
        failed = (name for name in upstream.get(result.stage, ()) if name in by_name and by_name[name].verdict == FAIL)
        unseen = any(not _later(by_name[name], result, passes) for name in failed)
        marked.append(replace(result, marks=_marks(result, direct, unseen, by_name, consumers, mode)))
    return marked


def _before(result: StageResult, direct: Sequence[str], by_name: Results, passes: ChainPasses) -> list[StageResult]:
    """The results of what a stage is computed from, where it first fails."""
    sources = [by_name[name] for name in direct if not _later(by_name[name], result, passes)]
    wrong = [other for other in by_name.values() if other.verdict in (WARN, FAIL)]
    return sources + [other for other in wrong if other.stage not in direct and _later(result, other, passes)]


def _later(result: StageResult, than: StageResult, passes: ChainPasses) -> bool:
    """Whether one first shows in a later pass of a chain than the other."""
    return result.first is not None and than.first is not None and passes.later(result.first, than.first)


def judged_inputs(stage: str, names: Mapping[str, Named], judged: Container[str]) -> list[str]:
    """The stages that a stage is computed from, as far as they are judged; of one that is not, its own inputs."""
    return _traced_back(stage, names, judged)[0]


def segment(stage: str, names: Mapping[str, Named], judged: Container[str]) -> list[str]:
    """A stage and those between it and the judged ones that it is computed from: an error of any shows first in it."""
    return [stage, *_traced_back(stage, names, judged)[1]]


def shows_first_in(hidden: Sequence[str], names: Mapping[str, Named], shown: Sequence[str]) -> dict[str, str]:
    """Of each hidden stage the first shown one that an error in it reaches; '' where it reaches none.

    Args:
        hidden, shown: full names, in table order.
    """
    judged, where_ = {*shown}, dict.fromkeys(hidden, "")
    for stage in shown:
        for name in segment(stage, names, judged)[1:]:
            if not where_.get(name, stage):
                where_[name] = stage
    return where_


def sources(stage: str, names: Mapping[str, Named], given: Container[str]) -> list[str]:
    """All stages that a stage is computed from, however far, without those whose values are given and what is behind
    them."""
    return _traced_back(stage, names, given)[1]


def _traced_back(stage: str, names: Mapping[str, Named], judged: Container[str]) -> tuple[list[str], list[str]]:
    """The nearest judged stages that a stage is computed from, and those on the way that are not judged.

    It ends at tokens: what was computed before one was chosen is an earlier round's.
    """
    found: dict[str, None] = {}
    between: dict[str, None] = {}
    left = [stage]
    while left:
        for name in inputs(names[left.pop()], names):
            if name in judged:
                found[name] = None
            elif name not in between:
                between[name] = None
                left += [] if names[name].stage.forced and names[name].layer is None else [name]
    return list(found), list(between)


def _marks(
    result: StageResult,
    sources: Sequence[StageResult],
    unseen: bool,
    by_name: Results,
    consumers: Mapping[str, list[str]],
    mode: str,
) -> tuple[str, ...]:
    """Of one stage; `unseen`: what it is computed from fails somewhere, however far before."""
    if result.verdict not in (WARN, FAIL):
        return (DISGUISED,) if _over_precise(result) else ()
    if mode == "local":
        return ("own",)
    if result.against_scores:
        return ("own", _lasting(result, by_name, consumers))
    inherited = max((excess(source) for source in sources), default=0.0)
    if inherited > 1.0 and (result.choices or excess(result) <= GROWTH * inherited):
        return ("inherited",)
    if inherited > 1.0 or unseen:
        return ("inherited", "grown")
    if result.choices and any(source.stage == scores_of(result.stage) for source in sources):
        return (SCORED, _lasting(result, by_name, consumers))
    return ("own", _lasting(result, by_name, consumers))


def _lasting(result: StageResult, by_name: Results, consumers: Mapping[str, list[str]]) -> str:
    """Whether an error shows in a stage that is computed from this one."""
    persists = any(by_name[name].verdict in (WARN, FAIL) for name in consumers.get(result.stage, ()))
    return "step" if persists else "spike"


def behind(names: Mapping[str, Named]) -> dict[str, set[str]]:
    """Of each stage all that it is computed from in the same round, however far: an error may pass unseen between."""
    direct = {
        named.name: [name for name in inputs(named, names) if names[name].stage.side not in ("kv", "accept")]
        for named in names.values()
    }
    met: dict[str, set[str]] = {name: set(near) for name, near in direct.items()}
    held, before = sum(map(len, met.values())), -1
    while held > before:  # twice where stages stand in the order of their dataflow
        for name, near in direct.items():
            met[name].update(*(met[one] for one in near))
        held, before = sum(map(len, met.values())), held
    return met


def excess(result: StageResult) -> float:
    """The largest statistic as a multiple of its bound; choices count as beyond every bound once one is a bug."""
    if result.choices:
        return inf if result.choices.get("bug") else 0.0
    return max(
        (multiple(result.x[name], ok) for name, (ok, _) in result.bounds.items() if name in result.x), default=0.0
    )


def multiple(x: float, bound: float) -> float:
    """How many times its bound a statistic is; of a bound of zero anything is beyond it."""
    return x / bound if bound else inf if x else 0.0


def _over_precise(result: StageResult) -> bool:
    """Far below a floor that is more than one lucky rounding."""
    exact = result.relative_l2 == 0.0 or result.judge != "noise"
    return not exact and result.x.get("l2", 1.0) < OVER_PRECISE


CORROBORATED = "corroborated"


def attest(results: Sequence[StageResult], golden: TrustedGolden) -> list[StageResult]:
    """Mark corroborated stages; where references disagree a stage is disputed, whatever the device has there.

    That is no failure of the device's, and no pass: nobody knows what it should have been. What is beyond its bounds
    and computed from a disputed stage is disputed with it, unless the references agree on it all the same.
    """
    disputed, agreed = _said(golden.manifest)
    attested = []
    for result in results:
        wrong = result.verdict in (FAIL, WARN)
        if result.stage in agreed:
            result = replace(result, marks=(*result.marks, CORROBORATED))
        elif result.stage in disputed or (wrong and in_doubt(result.stage, golden)):
            result = _disputed(result, result.stage in disputed)
        attested.append(result)
    return attested


def in_doubt(stage: str, golden: TrustedGolden) -> bool:
    """Whether the references disagree on a stage, or on one that it is computed from and not on the stage itself."""
    disputed, agreed = _said(golden.manifest)
    if not disputed or stage in agreed:
        return stage in disputed
    return stage in disputed or bool(disputed & behind(golden.declared)[stage])


def doubted_sides(golden: TrustedGolden) -> set[str]:
    """Target and drafter, as far as the references disagree on a stage of it: its config may be what is read wrong."""
    return {"drafter" if "drafter" in name.split(".")[:2] else "target" for name in _said(golden.manifest)[0]}


def _said(manifest: Manifest) -> tuple[set[str], set[str]]:
    """The stages that any reference disputes, and those that are agreed on."""
    disputed = {name for witness in manifest.corroborations for name in witness.disputed}
    return disputed, {name for witness in manifest.corroborations for name in witness.stages} - disputed


def _disputed(result: StageResult, itself: bool) -> StageResult:
    if result.verdict == NOT_JUDGED:
        return result
    note = "the references disagree on " + ("this stage" if itself else "a stage that it is computed from")
    return replace(
        result,
        verdict=DISPUTED,
        note=f"{note} (`parity corroborate`)",
        first=None,
        worst=None,
        bad_rows=0,
        relation="",
        marks=(*result.marks, DISPUTED),
    )


def witnesses(manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each reference that was compared with this golden."""
    stages, prompts = len(manifest.stages), len(manifest.case.prompts)
    return tuple(
        f"{seen.witness} {seen.versions.get(seen.witness, '')}".strip()
        + f" confirms {len(seen.stages)} of {stages} stages on {seen.prompts} of {prompts} prompts"
        + (f" and disputes {len(seen.disputed)}" if seen.disputed else "")
        for seen in manifest.corroborations
    )
