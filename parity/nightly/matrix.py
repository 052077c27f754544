"""The matrix of a night as a person writes it: a TOML file, read and checked; `expand` makes its cells."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from parity import limits
from parity.errors import UsageError
from parity.files import toml
from parity.gates import GATES
from parity.kv_cache import FORM
from parity.nightly.records import CellKind, Label
from parity.policy import source_of
from parity.sampling import read_sampling, written

FAMILY = "peagle"
"""The label of the family where a case names its drafter itself."""


def _gates(names: tuple[str, ...]) -> tuple[str, ...]:
    """Gates that exist, in the order they run."""
    if unknown := [name for name in names if name not in GATES]:
        raise ValueError(f"{unknown[0]} is no gate; there is {', '.join(GATES)}")
    return tuple(name for name in GATES if name in names)


def _sampling(text: str) -> str:
    """Settings to sample by with every one of them named, as a golden says them."""
    try:
        return written(read_sampling(text)) if text else ""
    except UsageError as error:
        raise ValueError(str(error)) from None


def _listed(value: Any) -> Any:
    """One value stands for a list of it."""
    return list(value) if isinstance(value, list | tuple) else [value]


Name = Annotated[str, StringConstraints(pattern=r"\S")]
"""A path, a device or a policy: never empty where it is written down, as an unset variable would leave it."""
Count = Annotated[int, Field(ge=1, strict=True)]
Drafts = Annotated[int, Field(ge=0, le=limits.DRAFTS, strict=True)]
GateNames = Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(_gates)]
PatternList = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
CountList = Annotated[tuple[Count, ...], BeforeValidator(_listed), Field(min_length=1)]


class MatrixPart(BaseModel):
    """Base of every table: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CellSettings(MatrixPart):
    """What a cell is asked for; [run] says it for all, a case or an include for its own.

    `kind` is `judged`, or `bench`: its golden's prompts are timed with and without drafts, and the ratio has to be
    `at_least` that; gates, comparisons and diagnosis are left out.
    """

    gates: GateNames | None = None
    histories: Count | None = None
    diagnose: bool | None = None
    speed_tokens: Annotated[int, Field(ge=0, strict=True)] | None = None
    kind: CellKind | None = None
    at_least: Annotated[float, Field(ge=0)] | None = None

    @property
    def said(self) -> dict[str, Any]:
        """What is said here and nowhere else."""
        return {name: value for name in CellSettings.model_fields if (value := getattr(self, name)) is not None}


class MatrixCase(CellSettings):
    """Checkpoints, prompts and budget; `golden` where one exists already: `{k}` and `{family}` in it are filled in.

    Where a golden is named, `prompts` may be left out. `schedule` is K of each round in turn; the largest of them is
    the K of its cells. `kv_cache` are the formats of the caches, as `parity.kv_cache` reads them. `sample` is how its
    tokens are drawn, as `parity.sampling` reads it; greedily where empty.
    """

    target: Name
    drafter: Name = ""
    families: tuple[Label, ...] = ()
    prompts: Name = ""
    max_new_tokens: Count
    golden: Name = ""
    schedule: Annotated[tuple[Drafts, ...], Field(max_length=limits.SCHEDULE)] = ()
    kv_cache: Annotated[str, StringConstraints(pattern=f"^({FORM})?$")] = ""
    sample: Annotated[str, AfterValidator(_sampling)] = ""

    @model_validator(mode="after")
    def _whole(self) -> MatrixCase:
        if not self.prompts and not self.golden:
            raise ValueError("names neither prompts nor a golden")
        if self.schedule and len({*self.schedule}) < 2:
            raise ValueError("schedule is of one K: it takes several, as [4, 0, 2]")
        return self


class MatrixFamily(MatrixPart):
    """A kind of drafter, by its checkpoint."""

    drafter: Name


class MatrixPolicy(MatrixPart):
    """Precision and bounds; the precision's own policy where `bounds` is empty."""

    precision: Literal["bfloat16", "float32"] = "bfloat16"
    bounds: Name = ""


class AxisPatterns(MatrixPart):
    """Patterns over the axes; an axis that is not named matches anything."""

    case: PatternList | None = None
    device: PatternList | None = None
    family: PatternList | None = None
    k: CountList | None = None
    tp: CountList | None = None
    policy: PatternList | None = None

    @property
    def named(self) -> dict[str, tuple[str, ...] | tuple[int, ...]]:
        """The axes that are named, with their patterns."""
        return {name: value for name in AxisPatterns.model_fields if (value := getattr(self, name)) is not None}


class IncludeRow(AxisPatterns, CellSettings):
    """Cells to add; or, where it names cells that are there, settings for these."""


class RunSettings(CellSettings):
    """How the cells are run.

    Args:
        workers: cells at a time; the cores where None.
        cell_timeout: seconds until a cell is given up.
        retries: how often a cell is begun again after what ran it died, never after a verdict.
        again: how often a cell whose figures look changed is measured again within the night, at the most.
    """

    gates: GateNames = tuple(GATES)
    histories: Count = 60
    diagnose: bool = True
    speed_tokens: Annotated[int, Field(ge=0, strict=True)] = 0
    kind: CellKind = "judged"
    at_least: Annotated[float, Field(ge=0)] = 1.0
    workers: Count | None = None
    cell_timeout: Annotated[float, Field(gt=0)] = 3600
    retries: Annotated[int, Field(ge=0, strict=True)] = 1
    again: Annotated[int, Field(ge=0, le=16, strict=True)] = 16


class NightMatrix(MatrixPart):
    """A whole matrix file; `path` and `digest` say which."""

    cases: Annotated[dict[Label, MatrixCase], Field(min_length=1)]
    devices: Annotated[dict[Label, Name], Field(min_length=1)]
    families: dict[Label, MatrixFamily] = {}
    policies: Annotated[dict[Label, MatrixPolicy], Field(min_length=1)] = {"bfloat16": MatrixPolicy()}
    k: Annotated[tuple[Count, ...], Field(min_length=1)]
    tp: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    exclude: Annotated[tuple[AxisPatterns, ...], Field(max_length=limits.ROWS)] = ()
    include: Annotated[tuple[IncludeRow, ...], Field(max_length=limits.ROWS)] = ()
    only: Annotated[tuple[AxisPatterns, ...], Field(max_length=limits.ROWS)] = ()
    run: RunSettings = RunSettings()
    path: Path = Path()
    digest: str = ""

    def families_of(self, case: str) -> dict[str, str]:
        """Family label to drafter checkpoint, as written.

        Raises:
            UsageError: the case names none, or one that is not there.
        """
        mine, names = self.cases[case], self.cases[case].families or tuple(self.families)
        if mine.drafter and mine.families:
            raise UsageError(f"{self.path}: cases.{case} names a drafter and families; one of them is enough")
        if mine.drafter:
            return {FAMILY: mine.drafter}
        if not names:
            raise UsageError(f"{self.path}: cases.{case} names no drafter, and there is no [families.NAME]")
        if unknown := [name for name in names if name not in self.families]:
            raise UsageError(f"{self.path}: cases.{case}: there is no [families.{unknown[0]}]")
        return {name: self.families[name].drafter for name in names}

    def located(self, path: str) -> str:
        """A path of the matrix, which is relative to its file; an URL as it is."""
        return path if "://" in path or not path else str((self.path.parent / path).resolve())

    def bounds(self, policy: str) -> str:
        """A policy's bounds: a shipped policy's name, or the file relative to the matrix.

        Raises:
            UsageError: neither.
        """
        named = self.policies[policy].bounds
        file = Path(self.located(named))
        return str(file) if named and file.is_file() else named and source_of(named, "bfloat16").stem


def read_matrix(path: Path) -> NightMatrix:
    """Read a matrix.

    Raises:
        UsageError: it cannot be read, is not TOML, or a key is wrong.
    """
    tables, data = toml(path, "matrix")
    if reserved := tables.keys() & {"path", "digest"}:
        raise UsageError(f"{path}: {min(reserved)}: unknown key")
    try:
        return NightMatrix(**tables, path=path, digest=hashlib.sha256(data).hexdigest())
    except ValidationError as error:
        raise UsageError(f"{path}: {_sentence(error)}") from None


def _sentence(error: ValidationError) -> str:
    """The first mistake, in the words of who wrote the file."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "string_pattern_mismatch" and not first["input"].strip():
        return f"{where} is empty"
    said = {
        "extra_forbidden": "unknown key",
        "missing": "is missing",
        "too_short": "is empty",
        "string_pattern_mismatch": f"{first['input']!r} does not fit a file name: letters, digits, - and _, "
        "40 at the most",
    }
    return f"{where}: {said.get(first['type'], first['msg'].removeprefix('Value error, '))}"
