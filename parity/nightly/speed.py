"""How fast a device decodes: against a baseline, against itself without drafts, and against what its passes promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from parity.decode import NO_DRAFTS, ended
from parity.errors import Inconclusive
from parity.nightly.records import Speed
from parity.seam import UNWATCHED, Device

REPEATS = 5
Clocked = Callable[[Sequence[int], int], float]
"""Prompt ids and token budget to decoded tokens per second, the prefill left out."""


def measure_speed(device: Device, baseline: Clocked, ids: Sequence[int], budget: int, repeats: int = REPEATS) -> Speed:
    """Alternate baseline, plain and speculative decoding of one prompt, one untimed turn of each first.

    Raises:
        Inconclusive: nothing is decoded behind the prefill.
    """
    speculative, plain = SpeculativeDecoding(device), TimedPlainDecoding(device)
    runs: dict[str, Clocked] = {"baseline": baseline, "plain": plain, "speculative": speculative}
    for run in runs.values():
        run(ids, budget)
    speculative.passes.clear()
    plain.passes.clear()
    turns = [{name: run(ids, budget) for name, run in runs.items()} for _ in range(repeats)]
    draft, verify, commit = (median(times) for times in zip(*speculative.passes, strict=True))
    step = median(plain.passes)
    rates = {name: median(turn[name] for turn in turns) for name in runs}
    return Speed(
        tokens=budget,
        repeats=repeats,
        **rates,
        over_baseline=median(turn["speculative"] / turn["baseline"] for turn in turns),
        over_plain=median(turn["speculative"] / turn["plain"] for turn in turns),
        model_over_plain=speculative.length * step / (draft + verify + commit),
        draft=draft,
        verify=verify,
        commit=commit,
        plain_pass=step,
    )


class TimedPlainDecoding:
    """Greedy decoding without drafts; `passes` are the seconds of every step."""

    def __init__(self, device: Device):
        self.device = device
        self.passes: list[float] = []

    def __call__(self, ids: Sequence[int], budget: int) -> float:
        """Tokens per second behind the prefill."""
        eos = self.device.describe().eos
        tokens = [int(self.device.prefill(ids, budget, UNWATCHED))]
        start = perf_counter()
        while not ended(tokens, eos, budget):
            began = perf_counter()
            chosen = self.device.verify(NO_DRAFTS, UNWATCHED)
            tokens += [int(token) for token in self.device.commit(NO_DRAFTS, chosen, UNWATCHED)]
            self.passes.append(perf_counter() - began)
        return _rate(len(tokens) - 1, perf_counter() - start)


class SpeculativeDecoding:
    """Decoding with drafts; `passes` are the seconds of every round's draft, verify and commit."""

    def __init__(self, device: Device):
        self.device, self.length = device, 0.0
        self.passes: list[tuple[float, float, float]] = []

    def __call__(self, ids: Sequence[int], budget: int) -> float:
        """Tokens per second behind the prefill; leaves the acceptance length in `length`."""
        eos, rounds = self.device.describe().eos, 0
        tokens = [int(self.device.prefill(ids, budget, UNWATCHED))]
        start = perf_counter()
        while not ended(tokens, eos, budget):
            began = perf_counter()
            drafts = self.device.draft(UNWATCHED)
            drafted = perf_counter()
            chosen = self.device.verify(drafts, UNWATCHED)
            verified = perf_counter()
            tokens += [int(token) for token in self.device.commit(drafts, chosen, UNWATCHED)]
            self.passes.append((drafted - began, verified - drafted, perf_counter() - verified))
            rounds += 1
        self.length = (len(tokens) - 1) / max(rounds, 1)
        return _rate(len(tokens) - 1, perf_counter() - start)


def _rate(tokens: int, seconds: float) -> float:
    if tokens < 1 or seconds <= 0:
        raise Inconclusive("the prompt ends with its first token: no speed to measure")
    return tokens / seconds
