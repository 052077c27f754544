"""Policies: ordered stage globs to the judge and the bounds of a stage; first match wins, no match is an error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from parity import limits
from parity.errors import UsageError
from parity.files import toml
from parity.stages import declared, matches
from parity.validation import first_mistake

Judge = Literal["noise", "relative", "exact", "experts", "decision", "none"]


@unique
class Limit(Enum):
    """Where a bound stops bounding: at this figure, for this reason. A bound has to stay below it."""

    NOISE = (
        200.0,
        "at the least floor there is, half a ULP or 0.11 %, it would let an error of a quarter of the golden pass",
    )
    ERRORS = 1000.0, "at the least standard error there is, 0.011 %, it would let a tenth of the golden pass"
    RELATIVE = 1.0, "a tensor of zeros has a relative error of 1"
    ELEMENT = 4.0, "in RMS of the row: hardly an element is larger, so any could be replaced"
    DISTANCE = 1.0, "an unrelated tensor is at a distance of 1, its negative at 2"
    SHARE = 1.0, "it is the share of everything"
    ABSOLUTE = 65504.0, "it is the largest float16: no activation is that far off and still one"
    ULP = 2.0**23, "so many float32 ULP are a factor of two"

    def __init__(self, figure: float, reason: str):
        self.figure, self.reason = figure, reason

    def refuse(self, value: float, what: str) -> None:
        """Raises ValueError: a bound of this value bounds nothing."""
        if value >= self.figure:
            raise ValueError(f"{what} = {value:g} bounds nothing, it has to be below {self.figure:g}: {self.reason}")


STATISTICS: dict[str, str] = {
    "l2": "",
    "median": "",
    "worst_row": "",
    "worst_column": "",
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

OWN = ("l2", "median", "worst_row", "worst_column", "largest", "scale", "bias")
"""The statistics measured against the noise floor."""


LIMITS: dict[str, Limit | dict[str, Limit]] = {
    **{
        name: {"noise": Limit.NOISE, "relative": Limit.RELATIVE}
        for name in ("l2", "median", "worst_row", "worst_column")
    },
    "largest": {"noise": Limit.NOISE, "relative": Limit.ELEMENT},
    **{name: {"noise": Limit.ERRORS, "relative": Limit.RELATIVE} for name in ("scale", "bias")},
    **dict.fromkeys(("cosine_distance", "pearson_distance"), Limit.DISTANCE),
    "r_ratio": Limit.NOISE,
    "beyond_tolerance": Limit.ABSOLUTE,
    "ulp_max": Limit.ULP,
}
"""Of each statistic, by judge where it depends on it; the rest by their unit, shares and relative errors."""


def limit(statistic: str, judge: str) -> Limit:
    """Where a bound on this statistic stops bounding."""
    known = LIMITS.get(statistic) or (Limit.SHARE if STATISTICS[statistic] == "share" else Limit.RELATIVE)
    return known[judge] if isinstance(known, dict) else known


PARTIAL = {
    "scale": "a factor that all have in common",
    "bias": "a direction that all have in common",
    "unlike": "bits",
    "median": "half of the rows",
    "worst_column": "what many rows have in one place",
}
"""What says nothing of the rest of an error, and what of it it does speak of."""


PAIR = tuple(declared(4, 2, pages=True, quantised=True))
"""Stages of a small pair of models: enough to tell whether a row can ever apply, before a golden is named."""


class PolicyPart(BaseModel):
    """Base of every part: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Bound(PolicyPart):
    """At most `ok` passes, at most `warn` is listed, beyond it fails."""

    ok: float = Field(ge=0, allow_inf_nan=False, strict=True)
    warn: float = Field(ge=0, allow_inf_nan=False, strict=True)

    @model_validator(mode="after")
    def _ordered(self) -> Bound:
        if self.warn < self.ok:
            raise ValueError(f"warn ({self.warn:g}) is below ok ({self.ok:g})")
        return self


class Tolerance(PolicyPart):
    """|device - golden| <= atol + rtol |golden|."""

    rtol: float = Field(ge=0, allow_inf_nan=False, strict=True)
    atol: float = Field(gt=0, allow_inf_nan=False, strict=True)


class Row(PolicyPart):
    """One row of a policy. In TOML a bound is a key of the row: `l2 = { ok = 1.5, warn = 3.0 }`.

    Args:
        stages: a stage glob.
        modes: the comparisons it speaks of; `quantised` is a chained one with a golden of quantised caches, or a local
            one of a segment between two shown stages; rows of `chained` speak of it as well.
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
    modes: tuple[Literal["chained", "local", "quantised"], ...] = Field(default=("chained", "local"), min_length=1)
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
        self._bounded()
        return self

    def _bounded(self) -> None:
        """Every bound bounds something, whatever is compared; what it leaves at a golden's own floor is seen there."""
        if self.bounds and not self.bounds.keys() - PARTIAL.keys():
            what = " and ".join(f"{name} bounds {PARTIAL[name]}" for name in self.bounds)
            raise ValueError(f"row {self.stages!r}: {what} and nothing bounds the rest: a size is due, such as l2")
        for name, bound in self.bounds.items():
            limit(name, self.judge).refuse(bound.warn, f"row {self.stages!r}: {name}")
        Limit.ULP.refuse(self.ulp, f"row {self.stages!r}: ulp")
        for dtype, allowed in self.tolerances.items():
            times = self.bounds["beyond_tolerance"].warn
            Limit.RELATIVE.refuse(allowed.rtol * times, f"row {self.stages!r}: {dtype} rtol x beyond_tolerance")
            Limit.ABSOLUTE.refuse(allowed.atol * times, f"row {self.stages!r}: {dtype} atol x beyond_tolerance")

    def takes(self, stage: str, mode: str) -> bool:
        """Whether this row speaks of this stage in this mode."""
        spoken = mode in self.modes or (mode == QUANTISED and "chained" in self.modes)
        return spoken and matches(self.stages, stage)


QUANTISED = "quantised"


def mode_of(mode: str, kv_cache: str, chained: bool = False) -> str:
    """The mode that a policy has rows for, of a comparison with a golden of such caches.

    Args:
        chained: a local comparison does not force all that the stage is computed from: its segment is a small chain.
    """
    return QUANTISED if kv_cache and (mode == "chained" or chained) else mode


Pattern = tuple[str, tuple[str, ...]]
"""Stages and modes of a row."""


@dataclass(frozen=True)
class Own:
    """A policy that is not the shipped one of its name.

    Attributes:
        file: as it was named.
        apart: what parts it from the shipped one of its name, in words.
        borrowed: its rows differ, and it says with the shipped one's words what it cannot see.
    """

    file: str
    apart: str
    borrowed: bool


class Policy(PolicyPart):
    """A whole policy file; `blind` is what it cannot see, printed beside its verdict."""

    name: str
    blind: str = ""
    rows: tuple[Row, ...] = Field(alias="row", max_length=limits.ROWS)
    _own: Own | None = PrivateAttr(None)

    @property
    def own(self) -> Own | None:
        """Where it was read from, if its content is not that of the shipped policy of its name; None where it is."""
        return self._own

    @model_validator(mode="after")
    def _alive(self) -> Policy:
        if dead := self.dead(PAIR):
            raise ValueError(dead)
        return self

    def dead(self, stages: Iterable[str]) -> str:
        """A row that never applies to any of these stages because earlier ones take them, in words; '' where none is.

        A row that matches none of them is none: another pair of models may have more layers.
        """
        return _dead(self._patterns, tuple(stages))

    def unmatched(self, stages: Iterable[str]) -> str | None:
        """The stages of the first row that matches none of these; None where each matches one."""
        return _unmatched(self._patterns, tuple(stages))

    @property
    def _patterns(self) -> tuple[Pattern, ...]:
        return tuple((row.stages, row.modes) for row in self.rows)

    def row(self, stage: str, mode: str) -> Row:
        """The first row that speaks of this stage in this mode.

        Raises:
            UsageError: none does.
        """
        for row in self.rows:
            if row.takes(stage, mode):
                return row
        raise UsageError(f"policy {self.name}: no row matches stage {stage} in {mode} mode")

    def between_devices(self) -> Policy:
        """For the difference of two devices laid on the golden: it has no bits of its own, and may be all zero."""
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


def read_policy(named: str | Path | None = None, precision: str = "bfloat16") -> Policy:
    """Read a policy by file or name; the shipped one of this precision where none is named.

    Raises:
        UsageError: it cannot be read or a field is wrong.
    """
    source = source_of(named, precision)
    policy = _read(source)
    policy._own = _own(policy, source)
    return policy


def _read(source: Path) -> Policy:
    try:
        return Policy.model_validate(toml(source, "policy")[0])
    except ValidationError as error:
        raise UsageError(f"policy {source}: {first_mistake(error)}") from None


def _own(policy: Policy, source: Path) -> Own | None:
    ships = shipped().get(policy.name)
    if ships == source:
        return None
    if ships is None:
        return Own(str(source), f"{policy.name}, which does not ship", False)
    theirs = _read(ships)
    if policy == theirs:
        return None
    mine, due = ([row.model_dump(exclude={"reason"}) for row in one.rows] for one in (policy, theirs))
    if mine == due:
        return Own(str(source), f"the rows of the shipped {policy.name}, other words", False)
    count = sum(row not in due for row in mine)
    how = f"{count} of {len(mine)} rows differ" if count else "rows are left out, repeated or in another order"
    return Own(str(source), f"not the shipped {policy.name}: {how}", policy.blind == theirs.blind)


@lru_cache(maxsize=64)
def _dead(rows: tuple[Pattern, ...], stages: tuple[str, ...]) -> str:
    """See `Policy.dead`; a diagnosis asks the same of every comparison."""
    taken: dict[tuple[str, str], int] = {}
    for number, (glob, modes) in enumerate(rows):
        mine = [(stage, mode) for mode in modes for stage in stages if matches(glob, stage)]
        if mine and all(place in taken for place in mine):
            before = " and ".join(
                f"row {one + 1} ({rows[one][0]!r})" for one in sorted({taken[place] for place in mine})
            )
            return f"row {number + 1} ({glob!r}) never applies: {before} before it takes all its stages in its modes"
        for place in mine:
            taken.setdefault(place, number)
    return ""


@lru_cache(maxsize=64)
def _unmatched(rows: tuple[Pattern, ...], stages: tuple[str, ...]) -> str | None:
    """See `Policy.unmatched`."""
    return next((glob for glob, _ in rows if not any(matches(glob, stage) for stage in stages)), None)
