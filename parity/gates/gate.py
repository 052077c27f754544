"""The table of gates, and running them: a gate yields checks, each with a verdict and its figures, joined by AND."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from parity.compare.report import INCONCLUSIVE, NOT_JUDGED, ROUNDED, Place, conclude, exit_code
from parity.errors import NotShown, ParityError, UsageError
from parity.raised import as_parity_error

if TYPE_CHECKING:
    from parity.gates.context import GateContext

GATES = {
    "provenance": "the golden is not stale, and shares no source with the device",
    "stages": "every stage within its bounds, from the golden's input (local) and with errors travelling (chained)",
    "taps": "every tap is, bit for bit, the target's residual stream its name says, one position before its token",
    "decisions": "every logits row: same choice, tie, noise or bug; the lowest id wins a tie",
    "lossless": (
        "speculation emits what plain greedy decoding emits, that is the golden's text, "
        "and drafts are accepted by the rule"
    ),
    "verify": "a pass of K+1 rows gives what K+1 passes of one row give, in any batch and padding",
    "acceptance": "acceptance against the reference on the same prompts, with an interval; counts that add up",
    "rollback": "caches after every accept and reject: lengths, contents, dead rows, errors in mid-round",
    "batch": "a sequence in a batch is what it is alone: in any lane, beside anybody, whoever joins or leaves",
    "lifecycle": "continuing from a cache equals starting fresh: prefix hits, resumed, aborted, restored, in chunks",
    "loops": "the asynchronous loop emits, round by round, what the synchronous one does, and leaves the same caches",
    "boundary": "the end of the caches: what just fits runs, what does not is refused or decoded plainly",
    "positions": "q and k after RoPE at every position up to 131,071, against float64; unknown schedules are errors",
    "sampling": "speculative sampling draws from the target's own distribution, by the accept rule it names",
}
"""Gate names in the order they run, each the module `parity.gates.NAME` with `checks(context)`."""

SAMPLED = ("provenance", "stages", "sampling")
"""Those that judge on a golden that samples as well; the others compare greedy decoding."""


@dataclass(frozen=True)
class Check:
    """One thing a gate looked at.

    Attributes:
        name: what was asked, in a few words.
        verdict: pass, warn, fail, inconclusive or not judged.
        evidence: one line a person can act on: counts, figures with units, what could not be seen and why.
        figures: the same and more, for JSON; plain numbers, strings, lists and dicts.
        place: where it first shows, for a failure.
        exact: the device was judged in float32, though the run is in another precision.
        undeclared: it needs what the device's description leaves out, or what the golden's family of drafters lacks.
    """

    name: str
    verdict: str
    evidence: str
    figures: dict[str, Any] = field(default_factory=dict)
    place: Place | None = None
    exact: bool = False
    undeclared: bool = False


@dataclass(frozen=True)
class GateResult:
    """One gate: its verdict is that of its worst check; a gate without a check is inconclusive.

    One of which the device declares to show nothing, or which the family has nothing for, is not judged.
    """

    gate: str
    checks: tuple[Check, ...]
    reproduce: str = ""

    @property
    def verdict(self) -> str:
        """The worst verdict of the checks."""
        if self.checks and all(check.undeclared and check.verdict == NOT_JUDGED for check in self.checks):
            return NOT_JUDGED
        return conclude(check.verdict for check in self.checks)

    @property
    def first(self) -> Check | None:
        """The first check that is as bad as the gate; the first of all where none was judged, which is inconclusive."""
        return next((check for check in self.checks if check.verdict == self.verdict), next(iter(self.checks), None))


@dataclass(frozen=True)
class GateReport:
    """All gates that ran over one device and golden, joined by AND.

    Attributes:
        left_out: what a quick look did not ask (`parity.gates.quick`), in words; empty for any other.
    """

    device: str
    precision: str
    golden: str
    results: tuple[GateResult, ...]
    left_out: tuple[str, ...] = ()

    @property
    def quick(self) -> bool:
        """Whether this was a quick look, which never passes."""
        return bool(self.left_out)

    @property
    def verdict(self) -> str:
        """The worst verdict of the gates; of a quick look that finds nothing: inconclusive."""
        worst = conclude(result.verdict for result in self.results)
        return conclude((worst, INCONCLUSIVE)) if self.quick else worst

    @property
    def not_run(self) -> tuple[str, ...]:
        """Gates that were not asked: what ran says nothing of these."""
        ran = {result.gate for result in self.results}
        return tuple(name for name in GATES if name not in ran)

    @property
    def unseen(self) -> tuple[str, ...]:
        """What these gates do not show of a device that they judged in bfloat16 alone."""
        exact = any(check.exact for result in self.results for check in result.checks)
        return () if exact or self.precision != "bfloat16" else (ROUNDED,)

    @property
    def exit_code(self) -> int:
        """0 pass (or warn), 1 fail, 3 inconclusive or disputed."""
        return exit_code(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        gates = [asdict(result) | {"verdict": result.verdict} for result in self.results]
        return asdict(self) | {
            "results": gates,
            "quick": self.quick,
            "not_run": self.not_run,
            "verdict": self.verdict,
            "unseen": self.unseen,
            "exit_code": self.exit_code,
        }


def run_gates(
    context: GateContext, names: Sequence[str] = (), done: Callable[[GateResult], None] = lambda result: None
) -> GateReport:
    """Run the named gates, or all of them.

    Args:
        done: told each result as it comes.

    Raises:
        UsageError: a name is no gate, or the golden does not fit the device.
    """
    results = []
    for name in names or GATES:
        if name not in GATES:
            raise unknown_gate(name)
        if context.golden.manifest.case.sampling and name not in SAMPLED:
            raise UsageError(f"{context.golden.folder} samples: gate {name} compares greedy decoding")
        results.append(run_gate(context, name))
        done(results[-1])
    return GateReport(context.device_name, context.precision, str(context.golden.folder), tuple(results))


def unknown_gate(name: str) -> UsageError:
    """What is said of a name that is no gate; of several gates in one name, that each has an --only of its own."""
    several = [part.strip() for part in name.split(",")]
    if len(several) > 1 and {*several} <= {*GATES}:
        each = " ".join(f"--only {part}" for part in several)
        return UsageError(f"--only {name}: --only is given once for each gate: {each}")
    return UsageError(f"--only {name}: no such gate; there is {', '.join(GATES)}")


def run_gate(context: GateContext, name: str) -> GateResult:
    """One gate; a device that breaks down under it leaves the rest of it inconclusive, what was found before stays."""
    return GateResult(name, tuple(each_check(context, name)), context.command(name))


def each_check(context: GateContext, name: str) -> Iterator[Check]:
    """One gate's checks as they are made, the last of them what the device broke down under."""
    checks: Callable[[GateContext], Iterator[Check]] = import_module(f"parity.gates.{name}").checks
    try:
        yield from checks(context)
    except UsageError:
        raise
    except NotShown as error:
        yield Check(name, NOT_JUDGED, str(error), undeclared=True)
    except ParityError as error:
        yield Check(name, INCONCLUSIVE, str(error))
    except Exception as error:
        yield Check(name, INCONCLUSIVE, str(as_parity_error(context.device_name, f"gate {name}", error)))
