"""Policies: ordered stage globs to the judge and the bounds of a stage; first match wins, no match is an error."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from parity import limits
from parity.errors import UsageError
from parity.files import toml
from parity.stages import matches

Judge = Literal["noise", "relative", "exact", "experts", "decision", "none"]

STATISTICS: dict[str, str] = {
    "l2": "",
    "median": "",
    "worst_row": "",
    "largest": "",
    "scale": "",
    "bias": "",
    "cosine_distance": "1 - cosine",
    "pearson_distance": "1 - PCC",
    "r_ratio": "R",
    "beyond_tolerance": "x tolerance",
    "top5_error": "relative",
    "top50_error": "relative",
    "top1000_error": "relative",
    "all_error": "relative",
    "top1_missed": "share",
    "top5_missed": "share",
    "top50_missed": "share",
    "unlike": "share",
    "ulp_max": "ULP",
    "ulp_beyond": "share",
}
"""Every statistic that a row can bound, with its unit; '' for those in the unit of the judge (docs/policies.md)."""

OWN = ("l2", "median", "worst_row", "largest", "scale", "bias")
"""The statistics measured against the noise floor."""


class Part(BaseModel):
    """Base of every part: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Bound(Part):
    """At most `ok` passes, at most `warn` is listed, beyond it fails."""

    ok: float = Field(ge=0)
    warn: float = Field(ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Bound:
        if self.warn < self.ok:
            raise ValueError(f"warn ({self.warn:g}) is below ok ({self.ok:g})")
        return self


class Tolerance(Part):
    """|device - golden| <= atol + rtol |golden|."""

    rtol: float = Field(ge=0)
    atol: float = Field(gt=0)


class Row(Part):
    """One row of a policy. In TOML a bound is a key of the row: `l2 = { ok = 1.5, warn = 3.0 }`.

    Args:
        stages: a stage glob.
        modes: the comparisons it speaks of.
        judge: `noise` bounds multiples of the noise floor; `relative` bounds plain figures; `exact` allows
            no difference; `experts` allows router ties; `decision` classifies tokens; `none` says that
            this policy does not judge the stage (structure, NaN and constants still fail).
        bounds: by statistic.
        ulp: how far `ulp_beyond` lets an element be: 2^k - 1.
        tolerances: of `beyond_tolerance`, by the device's dtype.
        copies: the stage may equal the golden bit for bit, because it only moves data.
        reason: why these bounds.
    """

    stages: str
    modes: tuple[Literal["chained", "local"], ...] = ("chained", "local")
    judge: Judge
    bounds: dict[str, Bound] = {}
    ulp: int = Field(default=1, ge=0)
    tolerances: dict[str, Tolerance] = {}
    copies: bool = False
    reason: str = Field(min_length=10)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        """Bounds are written as keys of the row."""
        if not isinstance(data, dict):
            return data
        plain = {name: value for name, value in data.items() if name not in STATISTICS}
        return plain | {"bounds": plain.get("bounds", {}) | {name: data[name] for name in STATISTICS if name in data}}

    @model_validator(mode="after")
    def _whole(self) -> Row:
        numbers = self.judge in ("noise", "relative")
        if numbers != bool(self.bounds):
            raise ValueError(f"row {self.stages!r} judges by {self.judge} and sets {'no' if numbers else 'a'} bound")
        if "ulp_beyond" in self.bounds and self.ulp & (self.ulp + 1):
            raise ValueError(f"row {self.stages!r}: ulp = {self.ulp} is none of 0, 1, 3, 7, 15, …")
        if ("beyond_tolerance" in self.bounds) != bool(self.tolerances):
            raise ValueError(f"row {self.stages!r}: beyond_tolerance and tolerances go together")
        return self


class Policy(Part):
    """A whole policy file; `blind` is what it cannot see, printed beside its verdict."""

    name: str
    blind: str = ""
    rows: tuple[Row, ...] = Field(alias="row", max_length=limits.ROWS)

    def row(self, stage: str, mode: str) -> Row:
        """The first row that speaks of this stage in this mode.

        Raises:
            UsageError: none does.
        """
        for row in self.rows:
            if mode in row.modes and matches(row.stages, stage):
                return row
        raise UsageError(f"policy {self.name}: no row matches stage {stage} in {mode} mode")

    def between_devices(self) -> Policy:
        """For the difference of two devices laid on the golden: it has no bits of its own, and may be nothing at all."""
        rows = (
            row.model_copy(update={"copies": True, "bounds": {k: v for k, v in row.bounds.items() if k != "unlike"}})
            for row in self.rows
        )
        return self.model_copy(update={"rows": tuple(rows)})


def shipped() -> dict[str, Path]:
    """The policies that ship, by name: one for each precision, and other tools' as presets."""
    folder = Path(str(files("parity") / "policies"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def source_of(named: str | Path | None, precision: str) -> Path:
    """The file of a policy: a path, a shipped policy's name, or the one of this precision.

    Raises:
        UsageError: neither a file nor a name.
    """
    presets = shipped()
    if str(named or precision) in presets:
        return presets[str(named or precision)]
    if not Path(str(named)).exists():
        raise UsageError(f"policy {named} cannot be read: it is neither a file nor one of {', '.join(presets)}")
    return Path(str(named))


def read_policy(named: str | Path | None, precision: str) -> Policy:
    """Read a policy by file or name; the shipped one of this precision where none is named.

    Raises:
        UsageError: it cannot be read or a field is wrong.
    """
    source = source_of(named, precision)
    try:
        return Policy.model_validate(toml(source, "policy")[0])
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"policy {source}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
