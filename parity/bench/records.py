"""What a bench writes down: every timed run, the figures made of them, and what they say. `compare` reads no more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parity import files, limits
from parity.bench.statistics import Ratio, Spread
from parity.errors import UsageError
from parity.validation import first_mistake

SCHEMA_VERSION: Literal[1] = 1
Decoding = Literal["plain", "plain-by-verbs", "speculative", "controlled"]
"""Without drafts; the same by `verify` and `commit`, of a device that also does it in one call; K drafts in every
round; the controller's choice of 0 to K."""
ClockName = Literal["wall", "processor"]
"""Seconds of the wall, or of this process' processors, which others on the machine do not lengthen."""
ModelName = Literal["verbs", "rounds"]
"""What a round's seconds are predicted from: its verbs; of a loop in one piece, its rounds of other K."""
BenchVerdict = Literal["pass", "fail", "inconclusive"]


class BenchRecord(BaseModel):
    """Base of every part: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


Seconds = Annotated[float, Field(le=1e9)]
"""Of a run: thirty years at the most, so that what is worked out of several stays finite."""


class BenchMachine(BenchRecord):
    """Where it ran. Figures of two machines are not compared.

    Attributes:
        memory: bytes.
        threads: the variables that bound threads, as they were set.
    """

    platform: str
    processor: str
    cores: int
    memory: int
    threads: dict[str, str]
    versions: dict[str, str]


class BenchCase(BenchRecord):
    """What was run, by digests: figures of two cases are not compared.

    Attributes:
        workloads: name to the digest of its prompts' ids.
        notes: what was done to the checkpoints or prompts, in words.
    """

    target: str
    drafter: str
    precision: str
    max_new_tokens: int
    workloads: dict[str, str]
    notes: tuple[str, ...] = ()


class BenchAxes(BenchRecord):
    """Where a cell sits.

    Attributes:
        context: `short` for prompts as they are, else the positions that they were lengthened to.
        loop: `verbs`, driven from here, or the device's own: `own`, or what its option `loop` names.
        k: drafts of a round, at the most; 0 for plain decoding.
        lanes: sequences at once.
    """

    scenario: str
    workload: str
    context: str
    device: str
    loop: str
    decoding: Decoding
    k: int
    lanes: int

    @property
    def plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.decoding in ("plain", "plain-by-verbs")

    @property
    def name(self) -> str:
        """The cell in one word: `single/chat/short/b1/xla/verbs/speculative/k4`."""
        return f"{self.block}/{self.device}/{self.loop}/{self.decoding}/k{self.k}"

    @property
    def block(self) -> str:
        """What is interleaved with each other: `single/chat/short/b1`."""
        return f"{self.scenario}/{self.workload}/{self.context}/b{self.lanes}"


class BenchRounds(BenchRecord):
    """The rounds of one sequence: tokens emitted, drafts accepted, drafts made, of each."""

    emitted: tuple[int, ...]
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]


class BenchTurn(BenchRecord):
    """One timed run of a group: a prompt alone, or all prompts over the lanes.

    Attributes:
        prompts: ids of the group's prompts.
        tokens: that came out of each, the first one too.
        first: seconds from the start until the host had each one's first token.
        prefill, decode: seconds in prefills, and all others.
        stages, calls: seconds in each verb and its calls; empty for a loop of the device's own.
        rounds: of each prompt; empty in plain decoding.
    """

    repeat: int
    prompts: tuple[str, ...]
    tokens: tuple[int, ...]
    first: tuple[Seconds, ...]
    prefill: Seconds
    decode: Seconds
    stages: dict[str, Seconds] = {}
    calls: dict[str, int] = {}
    rounds: tuple[BenchRounds, ...] = ()

    @property
    def decoded(self) -> int:
        """Tokens behind the first ones: those of `decode` seconds."""
        return sum(self.tokens) - len(self.tokens)


class Speculation(BenchRecord):
    """What the rounds of all repeats accepted.

    Attributes:
        mean_acceptance_rate: accepted drafts as a share of those drafted.
        mean_acceptance_length: tokens of a round, the target's own included.
        two_or_more: share of rounds that emitted at least two tokens.
        per_position: share of all rounds that accepted draft i.
        conditional: of the rounds that tried draft i; None where none did.
        tried: rounds that tried draft i.
        ks: how often each number of drafts was made.
    """

    rounds: int
    mean_acceptance_rate: float
    mean_acceptance_length: float
    total_accepted_tokens: int
    two_or_more: float
    per_position: tuple[float, ...]
    conditional: tuple[float | None, ...]
    tried: tuple[int, ...]
    ks: dict[int, int]


class BenchFigures(BenchRecord):
    """Figures of a cell or of one prompt of it.

    Attributes:
        tokens_per_second: behind the prefill, over the repeats.
        token_ms: milliseconds of such a token.
        first_token_ms: until the first token is with the host.
        stage_ms: milliseconds of a call of each verb, the mean of each repeat.
        over_plain: the rate over the faster plain decoding of the same device, interleaved.
    """

    tokens_per_second: Spread
    token_ms: Spread
    first_token_ms: Spread
    stage_ms: dict[str, Spread] = {}
    over_plain: Ratio | None = None
    speculation: Speculation | None = None


class BenchCell(BenchRecord):
    """One cell: its runs and their figures, over all prompts and by prompt.

    Attributes:
        turns: every timed run.
        parted: where its tokens part from plain decoding's, or from those of a run that somebody watched, in words;
            nothing where they are the same.
        watched: prompts whose tokens were compared with such a run.
        unseen: why there was none.
        error: why there is nothing, where there is nothing.
        baseline: the cell of plain decoding that its ratio is over, the faster one where there are two.
        memory: bytes resident at the most in a process of its own, and before its device was built; None: not asked.
    """

    axes: BenchAxes
    turns: tuple[BenchTurn, ...] = ()
    overall: BenchFigures | None = None
    prompts: dict[str, BenchFigures] = {}
    parted: tuple[str, ...] = ()
    watched: int = 0
    unseen: str = ""
    error: str = ""
    baseline: str = ""
    memory: tuple[int, int] | None = None


class Predicted(BenchRecord):
    """A cell's speed-up as the model has it, and what explains the difference: measured is predicted times the product
    of three factors.

    Attributes:
        predicted: expected tokens of a round times a plain step, over a round.
        model: where a round's seconds are from.
        acceptance_of: the cell whose acceptance by position it is from.
        tokens: tokens of a round, measured over expected.
        costs: a round and a plain step as the model has them, over what was measured: medians of calls over their
            means, of verbs; the line through other K over this K's median round, of rounds.
        rest: what is left: time outside the verbs; of rounds, the median one over the mean.
        constant: what it would be if every draft were accepted as often as the first one.
        roofline: what the work of a round allows by the machine's peaks; None where the device does not say its work.
    """

    cell: str
    acceptance_of: str
    model: ModelName = "verbs"
    k: int
    predicted: float
    constant: float
    measured: Ratio
    tokens: float
    costs: float
    rest: float
    roofline: float | None = None


class LoopRatio(BenchRecord):
    """The rate of a loop of the device's own over that of the same engine driven by verbs, all else the same."""

    cell: str
    over: str
    ratio: Ratio


class Gated(BenchRecord):
    """The best K of a block's device, and whether it is fast enough; `why` where that is not shown.

    Attributes:
        chosen: the best cell of every second repeat alone, from the second one on; nothing where there is one repeat.
        held_out: its ratio in the other repeats, which had no part in choosing it.
    """

    block: str
    device: str
    cell: str = ""
    ratio: Ratio | None = None
    at_least: float
    verdict: BenchVerdict
    why: str = ""
    chosen: str = ""
    held_out: Ratio | None = None


class BenchReport(BenchRecord):
    """A whole bench.

    Attributes:
        peaks: the machine's measured FLOP and bytes a second, `flops` and `bytes`; nothing where nobody asked.
        findings: what does not pass, in words, the gravest first.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    created: str
    machine: BenchMachine
    case: BenchCase
    clock: ClockName = "wall"
    repeats: int
    warm_ups: int
    cells: tuple[BenchCell, ...]
    predictions: tuple[Predicted, ...] = ()
    loops: tuple[LoopRatio, ...] = ()
    gates: tuple[Gated, ...] = ()
    peaks: dict[str, float] = {}
    findings: tuple[str, ...] = ()
    verdict: BenchVerdict
    exit_code: Annotated[int, Field(ge=0, le=3)]

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return self.model_dump(mode="json")


def read_bench(path: Path) -> BenchReport:
    """Read what `parity bench --json` wrote.

    Raises:
        UsageError: the file is missing or is no bench.
    """
    try:
        return BenchReport.model_validate_json(files.content(path, limits.RECORD_BYTES), strict=True)
    except ValidationError as error:
        raise UsageError(f"{path} is no file of `parity bench --json`: {first_mistake(error)}") from None
