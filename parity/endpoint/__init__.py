"""A serving endpoint against a golden: what a black box tells of its numbers, its text and its acceptance.

connection.py asks, within limits; dialects.py says how each kind of server is asked, answers.py reads what comes
back; server.py asks everything about a prompt; truth.py is what the golden says. logprobs.py, greedy.py,
acceptance.py and experts.py judge. What cannot be read is no evidence: inconclusive, in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parity.compare.report import FAIL, INCONCLUSIVE, NOT_JUDGED, PASS, ROUNDED
from parity.endpoint.acceptance import acceptance, no_speculation
from parity.endpoint.experts import routed
from parity.endpoint.greedy import continuations, lossless
from parity.endpoint.logprobs import between, prompt_logprobs
from parity.endpoint.server import Continuation, Server
from parity.endpoint.truth import Truth, truths
from parity.errors import Inconclusive
from parity.gates.gate import Check, GateReport, GateResult
from parity.golden.synthetic import forced_by
from parity.golden.views import TrustedGolden
from parity.progress import Progress, quiet
from parity.reproducing import Argument, command_line

BLIND = (
    "stages and layers: a server shows its target's output alone; which stage is wrong, a device or a run folder shows",
    "the drafter but for how much is accepted: greedy verification is lossless, so wrong taps, a wrong drafter or a "
    "broken cache of its own leave text and log-probabilities as they are",
    "batches, long contexts, sampling and other prompts than the golden's: prompts are asked one at a time, greedily",
)
"""What no black box of this kind shows."""


@dataclass(frozen=True)
class EndpointReport(GateReport):
    """What was judged of one server, or of two side by side; `device` is the URL."""

    @property
    def not_run(self) -> tuple[str, ...]:
        """None: a server is asked what it can be asked."""
        return ()

    @property
    def unseen(self) -> tuple[str, ...]:
        """What these checks cannot show."""
        return (*BLIND, *([ROUNDED] if self.precision == "bfloat16" else []))


@dataclass(frozen=True)
class Examination:
    """What to ask of whom.

    Attributes:
        server: the one that speculates, or the only one.
        plain: the same model without speculation, to compare with, or None.
        speculates: False where `server` is said to decode plainly.
        bound: relative loss of acceptance length that still passes.
    """

    golden: TrustedGolden
    server: Server
    plain: Server | None = None
    precision: str = "bfloat16"
    speculates: bool = True
    bound: float = 0.05
    seed: int = 0
    progress: Progress = quiet


def examine(asked: Examination) -> EndpointReport:
    """Ask everything, then judge; what a server fails to answer leaves the checks of it inconclusive."""
    golden, server = asked.golden, asked.server
    results, answers = [], {}
    prompts = truths(golden, asked.precision)
    plain = asked.plain.connection.url if asked.plain else ""
    case: dict[str, Argument] = {"golden": golden.folder, "precision": asked.precision, "plain": plain}
    command = command_line("endpoint", server.connection.url, **case)
    for name, one in (("server", server), *((("plain", asked.plain),) if asked.plain else ())):
        checks: list[Check] = []
        try:
            answers[name] = _ask(asked, name, one, prompts)
            speculates = asked.speculates and name == "server"
            checks += _one(asked, one, answers[name], speculates)
        except Inconclusive as error:
            checks.append(Check("answers", INCONCLUSIVE, str(error)))
        results.append(GateResult(name, tuple(checks), command))
    if asked.plain and len(answers) == 2:
        pair = answers["server"], answers["plain"]
        results.append(GateResult("both", (lossless(*pair), between(*pair)), command))
    elif asked.plain:
        lack = Check("side by side", INCONCLUSIVE, "one of the two servers did not answer")
        results.append(GateResult("both", (lack,), command))
    return EndpointReport(server.connection.url, asked.precision, str(golden.folder), tuple(results))


def _ask(asked: Examination, name: str, server: Server, prompts: Sequence[Truth]) -> list[Continuation]:
    made = []
    for number, truth in enumerate(prompts):
        asked.progress(number, len(prompts), f"{name} {truth.case.id}")
        try:
            made.append(server.ask(truth, asked.golden.manifest.case.max_new_tokens))
        except Inconclusive as error:
            raise Inconclusive(f"prompt {truth.case.id}: {error}") from None
    return made


def _one(asked: Examination, server: Server, answers: Sequence[Continuation], speculates: bool) -> Iterator[Check]:
    yield _real(server)
    yield prompt_logprobs(answers)
    yield continuations(answers)
    if speculates:
        yield from acceptance(answers, server.names, asked.bound, asked.seed)
    else:
        yield no_speculation(answers)
    yield routed(asked.golden, answers)


def _real(server: Server) -> Check:
    """Neither this environment nor what the server tells of itself forces acceptance or experts."""
    name, told = "nothing is made up", server.synthetic()
    if forced := forced_by() or told:
        return Check(name, FAIL, f"{forced}: acceptance or experts are synthetic, and say nothing of the model")
    if told is None:
        said = "the server does not tell how it was started: forced acceptance would show as a text that is not greedy"
        return Check(name, NOT_JUDGED, said)
    return Check(name, PASS, "neither this environment nor the server's options force acceptance or experts")
