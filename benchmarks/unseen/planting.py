"""A fault with its truth, written down before any diagnosis of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parity.device.faults.planting import in_each


@dataclass(frozen=True)
class Unseen:
    """One defect of the P-EAGLE pair that no catalogue holds.

    Attributes:
        id: its name.
        part: of the pipeline that it sits in.
        what: the defect, one sentence.
        stage: where it should show first in a local comparison, a full stage name.
        passes: the pass whose stage that is: prefill, draft, verify, or commit for what a commit shows.
        component: what exactly is wrong.
        words: when it is wrong; empty where it always is.
        condition: the same in the grammar of `parity.device.faults.conditions`; empty where that cannot say it.
        precision: the device's; float32 where bfloat16's noise is as large as the defect.
        plant: puts it into a pipeline.
        number: of the set that it was written with.
    """

    id: str
    part: str
    what: str
    stage: str
    passes: str
    component: str
    words: str
    condition: str
    precision: str
    plant: Callable[[Any], None]
    number: int = 1

    @property
    def truth(self) -> dict[str, Any]:
        """All that is known of it beforehand, for JSON."""
        told = {name: value for name, value in vars(self).items() if name not in ("plant", "number")}
        return told | {"set": self.number, "conditional": bool(self.words), "float32_only": self.precision == "float32"}


class Part:
    """The faults of one part of the pipeline that one set holds, in order."""

    def __init__(self, name: str, number: int = 1) -> None:
        self.name, self.number = name, number
        self.faults: list[Unseen] = []

    def __call__(
        self,
        id: str,
        what: str,
        stage: str,
        passes: str,
        component: str,
        words: str = "",
        condition: str = "",
        precision: str = "bfloat16",
    ) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """Enter the decorated function, which changes a pipeline, as a fault."""

        def enter(plant: Callable[[Any], None]) -> Callable[[Any], None]:
            truth = id, self.name, what, stage, passes, component, words, condition, precision
            self.faults.append(Unseen(*truth, in_each(plant), self.number))
            return plant

        return enter
