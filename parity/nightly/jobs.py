"""What is handed to a process of its own, and what comes back."""

from __future__ import annotations

from pydantic import model_validator

from parity.nightly.records import Cell, CellResult, Record


class GoldenJob(Record):
    """A golden to make or to fetch.

    Attributes:
        name: of the case, family and K it is for.
        given: an existing golden, folder or fsspec URL; '' makes one, or takes the one made before.
        share: fsspec URL below which goldens are kept for other machines; '' keeps it here alone.
    """

    name: str
    target: str
    drafter: str
    prompts: str
    max_new_tokens: int
    k: int
    given: str = ""
    share: str = ""

    @classmethod
    def of(cls, cell: Cell, share: str = "") -> GoldenJob:
        """The golden that a cell needs: the same job for every cell that it serves."""
        axes = cell.axes
        return cls(
            name=f"{axes.case}.{axes.family}.k{axes.k}",
            target=cell.target,
            drafter=cell.drafter,
            prompts=cell.prompts,
            max_new_tokens=cell.max_new_tokens,
            k=axes.k,
            given=cell.golden,
            share=share,
        )


class CellJob(Record):
    """A cell to judge on a golden, a folder or an fsspec URL; `repeat` counts how often it was judged before that night."""

    night: str
    cell: Cell
    golden: str
    repeat: int = 0


class Job(Record):
    """One of the two."""

    golden: GoldenJob | None = None
    cell: CellJob | None = None

    @model_validator(mode="after")
    def _one(self) -> Job:
        if (self.golden is None) == (self.cell is None):
            raise ValueError("a job is a golden or a cell")
        return self


class Answer(Record):
    """What a job found, or in one sentence why it found nothing.

    Attributes:
        golden: folder of the golden on this machine; `url` where other machines find it, '' nowhere.
        result: of a cell.
        lost: it was the machine or the network that failed: worth another try.
        seconds: from the start of its process to its end.
    """

    golden: str = ""
    url: str = ""
    result: CellResult | None = None
    error: str = ""
    lost: bool = False
    seconds: float = 0.0
