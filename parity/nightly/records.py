"""What a night writes down: the planned cells, and for each what it found. Everything later reads these and no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from parity import files, limits
from parity.errors import UsageError
from parity.validation import first_mistake

SCHEMA_VERSION: Literal[1] = 1

RunMode = Literal["local", "chained"]
Better = Literal["lower", "higher", "none"]
CellVerdict = Literal["pass", "warn", "fail", "disputed", "inconclusive"]
"""A whole cell's."""
CellKind = Literal["judged", "bench"]
"""By gates and comparisons; or by how fast it speculates."""
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")]
"""Part of a cell's name, which is a file's name: no dot, which parts the labels, and no way out of a folder."""


def label(name: str) -> str:
    """A label for what somebody else named."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("_-")[:40] or "unnamed"


class NightRecord(BaseModel):
    """Base of every part: unknown fields are errors; infinities are strings, so that the file is strict JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class CellAxes(NightRecord):
    """Where a cell sits in the matrix: labels, the same every night, whatever they stand for."""

    case: Label
    device: Label
    family: Label
    k: int
    tp: int
    policy: Label

    @property
    def name(self) -> str:
        """The cell's name, fit for a file: `chat.numpy.peagle.k4.tp1.bfloat16`."""
        return f"{self.case}.{self.device}.{self.family}.k{self.k}.tp{self.tp}.{self.policy}"


class Cell(NightRecord):
    """One cell of the matrix: its axes, and what they stand for.

    Attributes:
        target, drafter, prompts: checkpoint folders and the prompts file.
        golden: an existing golden, folder or fsspec URL; made from the checkpoints where empty.
        schedule: K of each round in turn; nothing where all have the cell's.
        kv_cache: formats of the golden's caches; empty for the dtype of its passes.
        sample: how the golden's tokens are drawn, see `parity.sampling`; empty for greedy ones.
        device: as given to `--device`, the `tp` option included.
        bounds: policy file or name; the default policy of the precision where empty.
        gates: names of the gates to run.
        at_least: of a `bench`, speculation over plain decoding.
    """

    axes: CellAxes
    target: str
    drafter: str
    prompts: str
    max_new_tokens: int
    golden: str = ""
    schedule: tuple[int, ...] = ()
    kv_cache: str = ""
    sample: str = ""
    device: str
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    bounds: str = ""
    gates: tuple[str, ...]
    histories: int = 60
    diagnose: bool = True
    speed_tokens: int = 0
    kind: CellKind = "judged"
    at_least: float = 1.0

    @property
    def name(self) -> str:
        """The name of its axes."""
        return self.axes.name


class Metric(NightRecord):
    """One figure of a cell, as history keeps it.

    Attributes:
        stage: full stage name; `acceptance`, `decisions.GROUP`, `speed`, `bench` or `cell` for what no stage has.
        mode: `local` or `chained`; '' where neither applies.
        name: `l2`, `worst_row`, ..., `acceptance_length`, `relative`, `kl_mean`, `ratio`, ...
        unit: of the value: `x noise`, `relative`, `tokens/round`, `nats`, `logits`, `ratio`, `s`, `share`, `rows`.
        better: which direction is better.
        bound: what still passes, where there is a bound.
        low, high: limits of its 95 % interval, where there is one.
    """

    stage: str
    mode: RunMode | Literal[""]
    name: str
    value: float
    unit: str
    better: Better
    verdict: str
    bound: float | None = None
    low: float | None = None
    high: float | None = None


class HeatMap(NightRecord):
    """One stage family's error by layer and position: `x[i][j]` is layer `layers[i]` from `positions[j]` to the next.

    The unit is x noise, or relative L2 where the policy has no noise. None: no row there.
    """

    family: str
    mode: RunMode
    unit: str
    layers: tuple[int | None, ...]
    positions: tuple[int, ...]
    x: tuple[tuple[float | None, ...], ...]


class PromptAcceptance(NightRecord):
    """One prompt's free run: tokens emitted by each verify round, of device and reference."""

    prompt: str
    lengths: tuple[int, ...]
    reference: tuple[int, ...]


class PositionAcceptance(NightRecord):
    """Draft i of K over all prompts: rounds that accepted it, rounds in all, and 95 % limits (Wilson) of the rate."""

    draft: int
    accepted: int
    rounds: int
    low: float
    high: float
    reference_accepted: int
    reference_rounds: int


class Speed(NightRecord):
    """Decoding behind the prefill, in tokens per second, measured alternating in one process; medians of repeats.

    Attributes:
        baseline: the reference target decoding plainly: what the night's machine is measured by.
        over_baseline: median ratio of speculative to baseline in the same repeat.
        over_plain: the same to plain decoding by the device itself.
        model_over_plain: what acceptance length and pass times promise for `over_plain`.
        draft, verify, commit: seconds of the median pass; `plain_pass` of one plain decode step.
    """

    tokens: int
    repeats: int
    baseline: float
    plain: float
    speculative: float
    over_baseline: float
    over_plain: float
    model_over_plain: float
    draft: float
    verify: float
    commit: float
    plain_pass: float


class DiagnosisSummary(NightRecord):
    """What a diagnosis says: causes in the order in which they show, the stage that stays unexplained, all in words.

    `titles` are the causes' defects without this cell's figures, '' for one that no known defect explains: what is the
    same in several cells has the same title.
    """

    causes: tuple[tuple[str, str, str], ...] = Field(default=(), description="(hypothesis, what it says, usual fix)")
    titles: tuple[str, ...] = ()
    unexplained: str = ""
    words: str


class ComparedMode(NightRecord):
    """One comparison in words: every family's verdict as the terminal tells it, and the stage where it parts first."""

    families: dict[str, str]
    first: str = ""


class Landmarks(NightRecord):
    """Positions that mean something in every map: the sliding window (None without one), and where prompts end."""

    window: int | None = None
    prompt_ends: tuple[int, ...] = ()


class CellResult(NightRecord):
    """What one cell found. A cell that broke has verdict `inconclusive` and says why in `error`.

    Attributes:
        repeat: 0, or which time the cell was measured again that night, counted from 1.
        golden_digest: over what the golden holds, see `parity.golden.digests.digest_tensors`.
        digest: of the file that it was read from, see `parity.nightly.sealed`; '' elsewhere.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    night: str
    cell: Cell
    repeat: int = 0
    verdict: CellVerdict
    started: str
    seconds: float
    golden: str = ""
    golden_digest: str = ""
    error: str = ""
    first: str = ""
    reproduce: str = ""
    gates: tuple[dict[str, Any], ...] = ()
    stages: dict[str, tuple[dict[str, Any], ...]] = {}
    compared: dict[str, ComparedMode] = {}
    findings: tuple[str, ...] = ()
    corroborated: tuple[str, ...] = ()
    heat: tuple[HeatMap, ...] = ()
    landmarks: Landmarks = Landmarks()
    prompts: tuple[PromptAcceptance, ...] = ()
    positions: tuple[PositionAcceptance, ...] = ()
    speed: Speed | None = None
    diagnosis: DiagnosisSummary | None = None
    metrics: tuple[Metric, ...] = ()
    versions: dict[str, str] = {}
    digest: str = Field(default="", exclude=True)

    @property
    def over_plain(self) -> float | None:
        """Speculation over plain decoding: of a bench, or of the speed figures; None where nobody asked."""
        timed = (metric.value for metric in self.metrics if (metric.stage, metric.name) == ("bench", "over_plain"))
        return next(timed, self.speed.over_plain if self.speed else None)

    @property
    def title(self) -> str:
        """The cell's name, and which time it was measured again."""
        return f"{self.cell.name}, measured again ({self.repeat})" if self.repeat else self.cell.name


class Commit(NightRecord):
    """One commit as git tells it; `address` is where it can be read, '' where the repository has no page."""

    name: str
    subject: str
    author: str
    address: Annotated[str, StringConstraints(pattern=r"^(https://[\w.-]+/[\w.~/-]+)?$")] = ""


class Night(NightRecord):
    """One night: what was planned, and on what.

    Attributes:
        name: unique, sorts by time: `20261121T020000.123456-4711`.
        commit: of the system under test, '' where it lies in no git repository; `dirty` if files differed from it.
        sources: digest of the devices' source files, which may lie outside of what is committed.
        head: the same commit with subject and author.
        matrix: path of the matrix; `matrix_digest` is over its bytes.
        left_out: names of the matrix's further cells, which `--only` left out.
        digest: of the file that it was read from, see `parity.nightly.sealed`; '' elsewhere.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    name: str
    started: str
    commit: str
    dirty: bool
    sources: str = ""
    head: Commit | None = None
    matrix: str
    matrix_digest: str
    engine: str
    machine: str
    cells: tuple[Cell, ...]
    left_out: tuple[str, ...] = ()
    digest: str = Field(default="", exclude=True)


AnyRecord = TypeVar("AnyRecord", bound=NightRecord)


def read_record(kind: type[AnyRecord], path: Path) -> AnyRecord:
    """Read a record.

    Raises:
        UsageError: the file is missing or does not follow the schema.
    """
    try:
        return kind.model_validate_json(files.content(path, limits.RECORD_BYTES), strict=True)
    except ValidationError as error:
        raise UsageError(f"{path} is no record of a night: {first_mistake(error)}") from None
