"""What a diagnosis answers, in the shape that the benchmarks of it keep."""

from __future__ import annotations


def answered_by(found) -> dict:
    """Answers as (id, what it says), the parts named by stage, and the stage that stays unexplained."""
    if isinstance(found, list):
        return {"answers": [(each.id, each.says) for each in found], "components": [], "unexplained": ""}
    if not found:
        return {"answers": [], "components": [], "unexplained": ""}
    return {
        "answers": [(cause.hypothesis, cause.says) for cause in found.causes],
        "components": [(stage, str(part)) for stage, part in found.components],
        "unexplained": found.unexplained.stage if found.unexplained else "",
    }
