"""Whose error it is: a stage's own only if nothing that it is computed from is beyond its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parity.compare.report import FAIL, WARN, StageResult
from parity.stages import Named, inputs

GROWTH = 1.5
"""An inherited excess over the bound that is more than this multiple of the inputs' has `grown`: one stage's
own rounding moves the ratio by less (the bound that separates pass from warn, in x noise). An error with a
direction may grow where rounding does not, so growth alone accuses nobody."""

OVER_PRECISE = 0.25
"""Below a quarter of the noise a bfloat16 device is more exact than bfloat16 can be: it computes in
another precision than it says, or it was handed the answer."""

DISGUISED = "over-precise"
"""The mark of such a stage."""


def mark(results: Sequence[StageResult], names: Mapping[str, Named], mode: str) -> list[StageResult]:
    """Mark every stage beyond its bounds as `own` or `inherited`, `step` or `spike`, and over-precise ones.

    A step persists in a stage that is computed from this one, a spike does not. What is inherited and more than
    its inputs' excess is `grown` too: only a local comparison can tell whether it adds an error of its own. A
    choice made from scores beyond their bounds is theirs, unless it contradicts them. In a local comparison nothing is
    inherited.
    """
    by_name = {result.stage: result for result in results}
    consumers: dict[str, list[str]] = {}
    for name in by_name:
        for source in inputs(names[name], names):
            consumers.setdefault(source, []).append(name)
    return [replace(result, marks=_marks(result, names, by_name, consumers, mode)) for result in results]


def _marks(result, names, by_name, consumers, mode: str) -> tuple[str, ...]:
    if result.verdict not in (WARN, FAIL):
        return (DISGUISED,) if _over_precise(result) else ()
    if mode == "local":
        return ("own",)
    if result.against_scores:
        return ("own", _lasting(result, by_name, consumers))
    sources = [by_name[name] for name in inputs(names[result.stage], names) if name in by_name]
    inherited = max((excess(source) for source in sources), default=0.0)
    if inherited > 1.0 and (result.choices or excess(result) <= GROWTH * inherited):
        return ("inherited",)
    if inherited > 1.0 or any(by_name[name].verdict == FAIL for name in behind(result.stage, names) if name in by_name):
        return ("inherited", "grown")
    return ("own", _lasting(result, by_name, consumers))


def _lasting(result, by_name, consumers) -> str:
    """Whether an error shows in a stage that is computed from this one."""
    persists = any(by_name[name].verdict in (WARN, FAIL) for name in consumers.get(result.stage, ()))
    return "step" if persists else "spike"


def behind(stage: str, names: Mapping[str, Named]) -> set[str]:
    """Every stage that this one is computed from in the same round, however far: an error may pass unseen between."""
    found, left = set(), [stage]
    while left:
        sources = [name for name in inputs(names[left.pop()], names) if names[name].stage.side not in ("kv", "accept")]
        left += [name for name in sources if name not in found]
        found.update(sources)
    return found


def excess(result: StageResult) -> float:
    """The largest statistic as a multiple of its bound; choices count as beyond every bound once one is a bug."""
    if result.choices:
        return float("inf") if result.choices.get("bug") else 0.0
    return max((result.x[name] / ok for name, (ok, _) in result.bounds.items() if name in result.x), default=0.0)


def _over_precise(result: StageResult) -> bool:
    """Far below a floor that is more than one lucky rounding."""
    exact = result.relative_l2 == 0.0 or result.judge != "noise"
    return not exact and result.x.get("l2", 1.0) < OVER_PRECISE
