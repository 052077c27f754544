"""What a comparison found: one line per stage, the findings, and the verdict they join to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from parity.compare.siblings import layers_in_common
from parity.compare.structure import Finding
from parity.layers import OUTSIDE

PASS, WARN, FAIL, INCONCLUSIVE = "pass", "warn", "fail", "inconclusive"
NOT_JUDGED = "not judged"
FORCED = "forced"
"""What a family says in place of pass where all that it is made from was the golden's."""
DISPUTED = "disputed"
"""The references disagree: no fault of the device's, and no evidence for it."""
WHOLE = "whole"
"""The evidence of a verdict that rests on whole tensors."""
RANK = {NOT_JUDGED: -1, PASS: 0, WARN: 1, INCONCLUSIVE: 2, DISPUTED: 2.5, FAIL: 3}
"""How grave a verdict is."""

ROUNDED = (
    "in bfloat16, what hides in its rounding: constants 0.1 % off, 0.3 % noise on the drafter's weights; "
    "float32 shows them"
)
"""What no comparison of a bfloat16 run sees; both were met."""


UNSHOWN_EXPERTS = (
    "which experts a row ran through: inferred where a router tie may have tipped; float32, or showing "
    "target.layers.*.experts, settles it"
)
"""What a bfloat16 run does not show that chooses its experts unseen."""


def join(verdicts: Iterable[str]) -> str:
    """The worst of several verdicts: gates are joined by AND. Stages that were not judged say nothing."""
    return max(verdicts, key=RANK.__getitem__, default=INCONCLUSIVE)


def conclude(verdicts: Iterable[str]) -> str:
    """`join` for a whole comparison: one in which nothing was judged is inconclusive."""
    worst = join(verdicts)
    return INCONCLUSIVE if worst == NOT_JUDGED else worst


def exit_code(verdict: str) -> int:
    """0 pass (or warn), 1 fail, 3 for anything else: what is not known to pass does not."""
    return {PASS: 0, WARN: 0, FAIL: 1}.get(verdict, 3)


@dataclass(frozen=True)
class Place:
    """Where in a golden something shows."""

    stage: str
    layer: int | None
    prompt: int
    round: int
    position: int | None = None
    head: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}, {self.row}"

    @property
    def row(self) -> str:
        """The place without its stage."""
        parts = [f"prompt {self.prompt}", f"round {self.round}"]
        parts += [f"position {self.position}"] if self.position is not None else []
        parts += [f"head {self.head}"] if self.head is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class StageResult:
    """One stage over all prompts and rounds.

    Errors of the device and the floor are relative L2; `x` maps a statistic to the device's value in
    the unit of its bound (x noise, or plain relative error). Choices count rows by verdict; `against_scores` of the
    bugs contradict the scores that they were made from. `marks` say whose error it is (see `places.mark`); `note` why a
    stage is inconclusive, or a choice is wrong alone. `first` and `worst` are rows: where some are
    beyond their own bound the first and the worst of those, counted by `bad_rows`; `relation` says which they are.
    `column` is the index within a row of a column that is beyond its bound while no row is beyond its own.
    `evidence` is what the verdict rests on: whole tensors, a sketch, best logits; `intervals` are the ends of what a
    sketch tells of each figure, `not_judged` is what it says nothing of.
    """

    stage: str
    family: str
    layer: int | None
    judge: str
    verdict: str
    reason: str
    rows: int
    rows_apart: int = 0
    relative_l2: float | None = None
    floor_l2: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    rms_abs: float | None = None
    cosine: float | None = None
    x: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, tuple[float, float]] = field(default_factory=dict)
    topk: dict[int, float] = field(default_factory=dict)
    choices: dict[str, int] = field(default_factory=dict)
    largest_regret: float | None = None
    against_scores: int = 0
    first: Place | None = None
    worst: Place | None = None
    bad_rows: int = 0
    relation: str = ""
    column: tuple[int, ...] | None = None
    marks: tuple[str, ...] = ()
    note: str = ""
    evidence: str = WHOLE
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    not_judged: tuple[str, ...] = ()

    @property
    def rows_summary(self) -> str:
        """The worst row beside the first, and which rows are bad; '' where there is nothing to add."""
        parts = [f"worst at {self.worst.row}"] if self.worst is not None and self.worst != self.first else []
        parts += [f"{self.bad_rows} of {self.rows} rows"] if self.bad_rows else []
        parts += [f"column {', '.join(map(str, self.column))} of a row"] if self.column is not None else []
        return ", ".join(parts) + (f": {self.relation}" if self.relation else "")


@dataclass(frozen=True)
class AcceptanceMeans:
    """Means per verify round: tokens emitted (bonus included), drafts among them."""

    acceptance_length: float
    accepted_drafts: float
    rounds: int


@dataclass(frozen=True)
class Acceptance:
    """Reference and free-running device, and how many prompts emit the reference's tokens.

    `device` and `same_prompts` are None for a local run, which generates nothing.
    """

    reference: AcceptanceMeans
    device: AcceptanceMeans | None
    same_prompts: int | None
    prompts: int


@dataclass(frozen=True)
class OwnExperts:
    """What became of rows behind experts that a run chose itself and continued with.

    Args:
        positions: of prompts, at which the experts of any layer are not the golden's.
        of: positions in all.
        differing: choices (one a row and layer) that are not the reference's when it runs again with the run's experts.
        choices: choices in all.
        explained: how many of them rounding explains.
        lack: why the reference was not run again, so that nothing is known of these rows; '' where it was.
    """

    positions: int
    of: int
    differing: int = 0
    choices: int = 0
    explained: float = 0.0
    lack: str = ""

    @property
    def verdict(self) -> str:
        """Inconclusive beyond what rounding explains. Without evidence the stages that the rows are in say so."""
        return INCONCLUSIVE if self.differing > self.explained else PASS

    def __str__(self) -> str:
        share = f"{self.positions} of {self.of} positions ({self.positions / max(self.of, 1):.1%})"
        rows = f"{share} ran through experts of the run's own"
        if self.lack:
            known = "force the golden's experts in the run, or compare where the reference can run again"
            return f"{rows}, and nothing says what these make of them ({self.lack}): {known}"
        differing = f"{self.differing} of {self.choices} choices are not the reference's"
        judged = "they are judged against the reference run again with these experts"
        return f"{rows}; {judged}: {differing}, rounding explains {self.explained:.0f}"


@dataclass(frozen=True)
class Report:
    """A whole comparison; `blind` is what its policy cannot see, `unseen` what the run itself does not show.

    `witnesses` are what other references said of the golden. `not_shown` are the stages asked for that the device does
    not declare as shown, each with the first shown one that an error in it reaches ('' for none), `parted` the prompts
    of which a part is not compared, each with the reason.
    `lucky` are ids of prompts whose floors are of several roundings, since rows alone were beyond those of one.
    `forced` are families of choices that were made from the golden's alone: they pass where the device is wrong before
    them. `not_exercised` is what no round of the golden does. `sampling` is how its tokens were drawn, if they were.
    `unasked` is how many of the golden's stages were not asked for.
    `layers` are the target layers that were run alone, `outside` the stages asked for that are none of theirs: of
    these the verdict says nothing.
    `holds` is what the wrong rows of the first divergent stage hold instead of their own values, where that is known.
    `beside` is the other run's folder where two devices are compared with each other, '' otherwise.
    `policy_file` is the file of a policy that is not the shipped one of its name, `policy_apart` what parts the two;
    both are '' for a shipped one, and for a copy of it.
    `partial` is a run that is judged by what it holds, because --partial asks for it.
    `rests_on` says by what the stages were judged where that is less than whole tensors, `without` what was left out.
    `own_experts` is there where a run continued with experts of its own, and rows of these stages lie behind them.
    """

    device: str
    precision: str
    mode: str
    policy: str
    golden: str
    run: str
    stages: tuple[StageResult, ...]
    findings: tuple[Finding, ...]
    acceptance: Acceptance
    first: Place | None
    verdict: str
    reproduce: str
    holds: str = ""
    strict: bool = False
    blind: str = ""
    witnesses: tuple[str, ...] = ()
    own_experts: OwnExperts | None = None
    unseen: tuple[str, ...] = ()
    not_shown: dict[str, str] = field(default_factory=dict)
    parted: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    lucky: tuple[str, ...] = ()
    not_exercised: tuple[str, ...] = ()
    sampling: str = ""
    layers: str = ""
    outside: int = 0
    unasked: int = 0
    beside: str = ""
    rests_on: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    policy_file: str = ""
    policy_apart: str = ""
    partial: bool = False

    @property
    def exit_code(self) -> int:
        """0 pass (or warn), 1 fail, 3 inconclusive or disputed; a warning is a failure under --strict."""
        return 1 if self.strict and self.verdict == WARN else exit_code(self.verdict)

    @property
    def policy_asked(self) -> str:
        """What `--policy` is given for these bounds; '' where they are those of the precision."""
        return self.policy_file or (self.policy if self.policy != self.precision else "")

    @property
    def title(self) -> str:
        """What the verdict is of: of some layers or stages alone, or of a difference, it is none of a device."""
        if not self.layers:
            alone = f"; {self.unasked} stages not compared (outside --stage): no verdict on the device"
            two = "; of the difference of two devices, not of either: `parity diff` of each says whether it is right"
            return f"{self.mode} verdict: {self.verdict}{alone if self.unasked else ''}{two if self.beside else ''}"
        rest = f"{self.outside} stages not judged ({OUTSIDE}): no verdict on the device"
        return f"{self.mode} verdict of target layers {self.layers} alone: {self.verdict}; {rest}"

    @property
    def first_summary(self) -> str:
        """The first divergent place, the worst row of its stage, and which rows are bad; '' where none has a place."""
        if self.first is None:
            return ""
        stage = self.first_stage
        rows = [stage.rows_summary] if stage and stage.rows_summary else []
        doubt = [f"{self.in_doubt} before it is inconclusive"] if self.in_doubt else []
        return str(self.first) + (f" ({'; '.join([*rows, *doubt])})" if rows or doubt else "")

    @property
    def first_stage(self) -> StageResult | None:
        """The result at the first divergent place; None where a finding is there."""
        return next((stage for stage in self.stages if stage.first == self.first), None) if self.first else None

    @property
    def first_layers(self) -> str:
        """In which layers the first divergent stage fails; '' where errors travel from layer to layer."""
        stage = self.first_stage
        if stage is None or self.mode != "local":
            return ""
        family = [one for one in self.stages if one.family == stage.family and one.verdict in (PASS, WARN, FAIL)]
        judged = {one.layer: one.verdict for one in family if one.layer is not None}
        return layers_in_common([layer for layer, verdict in judged.items() if verdict == FAIL], [*judged])

    @property
    def in_doubt(self) -> str:
        """The first inconclusive stage of those that the first divergent one inherits its error from; '' for none."""
        stage = self.first_stage
        if stage is None or "inherited" not in stage.marks:
            return ""
        before = self.stages[: self.stages.index(stage)]
        return next((one.stage for one in before if one.verdict == INCONCLUSIVE), "")

    @property
    def families(self) -> dict[str, str]:
        """Stage families in dataflow order, each with its verdict; `forced` where it passes on the golden's."""
        members: dict[str, list[StageResult]] = {}
        for stage in self.stages:
            members.setdefault(stage.family, []).append(stage)
        broken = {finding.stage for finding in self.findings}
        words = {
            family: FAIL if broken & {stage.stage for stage in stages} else join(stage.verdict for stage in stages)
            for family, stages in members.items()
        }
        return {family: FORCED if word == PASS and family in self.forced else word for family, word in words.items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {**asdict(self), "exit_code": self.exit_code}
