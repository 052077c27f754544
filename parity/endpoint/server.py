"""A server and what was asked of it: every prompt of a golden, freely and along the golden's text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.compare.choices import BUG
from parity.endpoint import answers
from parity.endpoint.answers import STOP, Completion
from parity.endpoint.connection import Connection, NotServed
from parity.endpoint.counters import DraftCounters, Names, read_counters
from parity.endpoint.dialects import DIALECTS, Dialect
from parity.endpoint.truth import Truth
from parity.errors import Inconclusive, UsageError
from parity.golden.synthetic import option_in

SETTLED = 3.0
"""Seconds until an engine's counters have to show what it has answered: they are written behind the answer."""

ABOUT = ("/server_info", "/get_server_info")
"""Where servers tell how they were started: SGLang always, vLLM in its development mode."""


@dataclass(frozen=True)
class Parting:
    """Where a server chose another token than the golden, or ended where the golden does not.

    Attributes:
        row: the row of the golden's logits that decides the token.
        golden, server: ids; -1 for the end of the text.
    """

    row: int
    golden: int
    server: int
    verdict: str
    regret: float


@dataclass
class Continuation:
    """What a server answered to one prompt.

    Attributes:
        free: its own greedy continuation.
        choices: the token it chose for each row of the continuation, given the golden's tokens before; the golden's own
            budget of rows where it got so far.
        partings: where it chose another token; it is asked once more with the golden's token behind each.
        scored: its answer to prompt and continuation, whose log-probabilities are asked for.
        counted: what its counters counted while it continued freely, or None.
    """

    truth: Truth
    free: Completion
    choices: list[int] = field(default_factory=list)
    partings: list[Parting] = field(default_factory=list)
    scored: Completion | None = None
    counted: DraftCounters | None = None


class Server:
    """One server, in its dialect.

    Args:
        kind: of `DIALECTS`; what `/v1/models` says by default.
        model: its name there; the only one by default.

    Raises:
        UsageError: no such kind or model, several models, or nobody listens.
        Inconclusive: it does not answer as such a server does.
    """

    def __init__(self, connection: Connection, kind: str = "", model: str = ""):
        self.connection = connection
        if kind and kind not in DIALECTS:
            raise UsageError(f"--server {kind}: there is {', '.join(DIALECTS)}")
        served = answers.field(connection.get_json("/v1/models"), "data")
        listed = served if isinstance(served, list) else []
        named = {
            name: answers.field(one, "owned_by") for one in listed if isinstance(name := answers.field(one, "id"), str)
        }
        if not named:
            raise Inconclusive(f"{connection.url}/v1/models lists no model: is this an OpenAI-compatible server?")
        serves = f"{connection.url} serves {', '.join(named)[:300]}"
        if model and model not in named:
            raise UsageError(f"--model {model}: {serves}")
        if not model and len(named) > 1:
            raise UsageError(f"{serves}: name one with --model")
        self.model = model or next(iter(named))
        owner = named[self.model]
        known = {one.owner: one for one in DIALECTS.values()}
        self.dialect: Dialect = DIALECTS[kind] if kind else known.get(str(owner), next(iter(DIALECTS.values())))
        self.names: Names | None = None

    def complete(self, ids: Sequence[int], budget: int, scored: bool = False) -> Completion:
        """A greedy completion.

        Raises:
            Inconclusive: none, or one that cannot be.
        """
        body = self.dialect.body(self.model, ids, budget, scored)
        answer = self.dialect.read(self.connection.post(self.dialect.path, body), ids)
        if len(answer.tokens) > budget:
            raise Inconclusive(f"the server returns {len(answer.tokens)} tokens where {budget} were asked for")
        if len(answer.tokens) < budget and answer.finish != STOP:
            said = f"{len(answer.tokens)} tokens of {budget}, ended by {answer.finish[:40]!r}"
            raise Inconclusive(f"the server returns {said}: what it chose behind them is unknown")
        return answer

    def ask(self, truth: Truth, budget: int) -> Continuation:
        """Everything about one prompt, in an order that lets its counters count the free continuation alone."""
        before = self.counters()
        made = Continuation(truth, self.complete(truth.case.ids, budget))
        made.counted = self._counted(before, made.free)
        self._follow(made, budget)
        made.scored = self.complete(truth.sequence[:-1], 1, scored=True)
        return made

    def _follow(self, made: Continuation, budget: int) -> None:
        """Compare the continuation with the golden's; behind a parting, ask once more along the golden's text."""
        truth, emitted = made.truth, made.truth.case.generated.emitted
        row = len(truth.case.ids) - 1
        tokens, at, ends = made.free.tokens, 0, made.free.finish == STOP
        while True:
            own = _with_end(tokens, emitted[at:], ends and truth.case.generated.finish == "eos")
            same = next((n for n, (a, b) in enumerate(zip(own, emitted[at:], strict=False)) if a != b), None)
            step = at + (min(len(own), len(emitted) - at) if same is None else same)
            made.choices += own[: step - at]
            if step >= len(emitted):
                if len(own) > len(emitted) - at:  # the budget is the golden's: it continues behind an end token
                    made.partings.append(Parting(row + step, -1, own[len(emitted) - at], BUG, float("inf")))
                return
            chosen = own[step - at] if same is not None else -1
            made.choices.append(chosen)
            made.partings.append(self._parting(truth, step, chosen))
            at = step + 1
            if made.partings[-1].verdict == BUG or at >= len(emitted):
                return
            answer = self.complete((*truth.case.ids, *emitted[:at]), budget - at)
            tokens, ends = answer.tokens, answer.finish == STOP

    def _parting(self, truth: Truth, step: int, chosen: int) -> Parting:
        row, due = len(truth.case.ids) - 1 + step, truth.case.generated.emitted[step]
        if chosen < 0:
            return Parting(row, due, chosen, BUG, float("inf"))
        return Parting(row, due, chosen, *truth.judge(row, due, chosen))

    def counters(self) -> DraftCounters | None:
        """What its counters say now; None where it has none that are known."""
        try:
            read = read_counters(self.connection.get("/metrics"))
        except NotServed:
            return None
        self.names = read[0] if read else None
        return read[1] if read else None

    def _counted(self, before: DraftCounters | None, free: Completion) -> DraftCounters | None:
        """What was counted for this answer: in the answer itself, or by the counters since `before`.

        Raises:
            Inconclusive: somebody else's tokens were counted as well, or not all of these.
        """
        if free.rounds is not None:
            drafted = None if free.drafted is None else float(free.drafted)
            return DraftCounters(free.rounds, None if free.accepted is None else float(free.accepted), drafted)
        ends = time.monotonic() + SETTLED
        while before is not None and (now := self.counters()) is not None:
            counted = now.since(before)
            if counted.emitted is None or counted.emitted == len(free.tokens):
                return counted
            if counted.emitted > len(free.tokens) or time.monotonic() > ends:
                raise Inconclusive(
                    f"the server counts {counted.emitted:.0f} tokens where it answered with {len(free.tokens)}: "
                    "somebody else uses it, and its counters tell nothing of these prompts"
                )
            time.sleep(0.02)
        return None

    def synthetic(self) -> str | None:
        """The option that forces its acceptance, '' where it tells how it was started and none does, None where not."""
        for path in ABOUT:
            try:
                told: Any = self.connection.get(path)
            except NotServed:
                continue
            if told.lstrip()[:1] == b"{":
                return option_in(told.decode(errors="replace"))
        return None


def _with_end(tokens: Sequence[int], due: Sequence[int], ended: bool) -> list[int]:
    """The continuation with the end token, which some servers leave out, where both ended there."""
    return [*tokens, due[-1]] if ended and len(tokens) == len(due) - 1 else list(tokens)
