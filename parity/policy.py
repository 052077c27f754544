"""Policies: ordered stage globs to the judge and the bounds of a stage; first match wins, no match is an error."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parity.errors import UsageError
from parity.stages import matches

Judge = Literal["noise", "relative", "exact", "experts", "decision"]


class Bound(BaseModel):
    """At most `ok` passes, at most `warn` is listed, beyond it fails."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    ok: float = Field(gt=0)
    warn: float = Field(gt=0)


class Row(BaseModel):
    """One row of a policy.

    Args:
        stages: a stage glob.
        modes: the comparisons it speaks of.
        judge: `noise` bounds multiples of the noise floor; `relative` bounds plain relative errors;
            `exact` allows no difference; `experts` allows router ties; `decision` classifies tokens.
        l2: relative L2 over all rows that are not set apart.
        median: the median row's relative L2.
        worst_row: the worst row's relative L2.
        largest: the largest element's error.
        reason: why these bounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    stages: str
    modes: tuple[Literal["chained", "local"], ...] = ("chained", "local")
    judge: Judge
    l2: Bound | None = None
    median: Bound | None = None
    worst_row: Bound | None = None
    largest: Bound | None = None
    reason: str = Field(min_length=10)

    @property
    def bounds(self) -> dict[str, Bound]:
        """The bounds that this row sets, by statistic."""
        named = {name: getattr(self, name) for name in ("l2", "median", "worst_row", "largest")}
        return {name: bound for name, bound in named.items() if bound is not None}


class Policy(BaseModel):
    """A whole policy file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    rows: tuple[Row, ...] = Field(alias="row")

    def row(self, stage: str, mode: str) -> Row:
        """The first row that speaks of this stage in this mode.

        Raises:
            UsageError: none does.
        """
        for row in self.rows:
            if mode in row.modes and matches(row.stages, stage):
                return row
        raise UsageError(f"policy {self.name}: no row matches stage {stage} in {mode} mode")


def read_policy(path: Path | None, precision: str) -> Policy:
    """Read a policy file; the shipped one of this precision where none is named.

    Raises:
        UsageError: the file cannot be read or a field is wrong.
    """
    source = path or Path(str(files("parity") / "policies" / f"{precision}.toml"))
    try:
        policy = Policy.model_validate(tomllib.loads(source.read_text()))
    except OSError as error:
        raise UsageError(f"policy {source} cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"policy {source} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"policy {source}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    for row in policy.rows:
        if row.judge in ("noise", "relative") and not row.bounds:
            raise UsageError(f"policy {source}: row {row.stages!r} judges by {row.judge} and sets no bound")
    return policy
