"""Print docs/hypotheses.md."""

from __future__ import annotations

from parity.families import FAMILIES
from parity.references.hypotheses import HYPOTHESES
from parity.references.hypotheses.catalogue import MODELS, Hypothesis

HEAD = """# Hypotheses

Every way in which a port of speculative decoding is known to be wrong, as a mutation of the PyTorch references.
`parity diagnose` runs the references under one of them at a time and asks how much of a device's error it explains.
They are written from the references and from public reports, never from a device. An id that ends in `-drafter` is
the same defect in the drafter.

Add one: a function of the loop and a value in `references/hypotheses/` that returns a context manager, with its row as
the decorator above it, then `python -m parity.references.hypotheses > docs/hypotheses.md`. The test holds it to the
stages that it claims to change first.

| id | what is wrong | shows first in | values | drafters | usual place of the fix | seen in |
|---|---|---|---|---|---|---|
"""


def row(hypothesis: Hypothesis) -> str:
    """One line of the table."""
    values = [str(value) for value in hypothesis.values if value is not None]
    if hypothesis.layered:
        values = ["layers: all, even, odd, or one"]
    if hypothesis.fit:
        fit = hypothesis.fit
        values.append(f"fitted {fit.low:g} to {fit.high:g}" + (", log scale" if fit.log else ""))
    if hypothesis.infer:
        values.append("read from the device's tensors")
    says = hypothesis.says.replace("{value:+d}", "N").replace("{value}", "V").replace("{value:g}", "V")
    stages = ", ".join(f"`{stage}`" for stage in hypothesis.stages)
    cells = (
        f"`{hypothesis.id}`",
        says.replace("{value:.4g}", "V"),
        stages,
        "; ".join(values),
        _about(hypothesis),
        hypothesis.fix,
    )
    return "| " + " | ".join((*cells, ", ".join(hypothesis.seen))) + " |"


def _about(hypothesis: Hypothesis) -> str:
    about = [family for family in FAMILIES if hypothesis.about(family)]
    if len(about) == len(FAMILIES):
        return "all"
    return "all with weights" if set(about) == set(MODELS) else ", ".join(about)


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(map(row, HYPOTHESES)) + "\n"


if __name__ == "__main__":
    print(page(), end="")
