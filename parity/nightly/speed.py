"""How fast a device decodes: against a baseline, against itself without drafts, and against what its passes promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from parity.decode import NO_DRAFTS, ended
from parity.drive import untapped
from parity.errors import Inconclusive
from parity.nightly.records import Speed
from parity.seam import Device

REPEATS = 5
Clocked = Callable[[Sequence[int], int], float]
"""Prompt ids and token budget to decoded tokens per second, the prefill left out."""


def measure_speed(device: Device, baseline: Clocked, ids: Sequence[int], budget: int, repeats: int = REPEATS) -> Speed:
    """Alternate baseline, plain and speculative decoding of one prompt, one untimed turn of each first.

    Raises:
        Inconclusive: nothing is decoded behind the prefill.
    """
    speculative, plain = Speculative(device), Plain(device)
    runs = {"baseline": baseline, "plain": plain, "speculative": speculative}
    for run in runs.values():
        run(ids, budget)
    speculative.passes.clear(), plain.passes.clear()
    found = [{name: run(ids, budget) for name, run in runs.items()} for _ in range(repeats)]
    draft, verify, commit = (median(one[part] for one in speculative.passes) for part in range(3))
    step = median(plain.passes)
    rates = {name: median(one[name] for one in found) for name in runs}
    return Speed(
        tokens=budget,
        repeats=repeats,
        **rates,
        over_baseline=median(one["speculative"] / one["baseline"] for one in found),
        over_plain=median(one["speculative"] / one["plain"] for one in found),
        model_over_plain=speculative.length * step / (draft + verify + commit),
        draft=draft,
        verify=verify,
        commit=commit,
        plain_pass=step,
    )


class Plain:
    """Greedy decoding without drafts; `passes` are the seconds of every step."""

    def __init__(self, device: Device):
        self.device, self.passes = device, []

    def __call__(self, ids: Sequence[int], budget: int) -> float:
        """Tokens per second behind the prefill."""
        eos = self.device.describe().eos
        tokens = [int(self.device.prefill(ids, budget, untapped))]
        start = perf_counter()
        while not ended(tokens, eos, budget):
            began = perf_counter()
            chosen = self.device.verify(NO_DRAFTS, untapped)
            tokens += [int(token) for token in self.device.commit(NO_DRAFTS, chosen, untapped)]
            self.passes.append(perf_counter() - began)
        return _rate(len(tokens) - 1, perf_counter() - start)


class Speculative:
    """Decoding with drafts; `passes` are the seconds of every round's draft, verify and commit."""

    def __init__(self, device: Device):
        self.device, self.passes, self.length = device, [], 0.0

    def __call__(self, ids: Sequence[int], budget: int) -> float:
        """Tokens per second behind the prefill; leaves the acceptance length in `length`."""
        eos, rounds = self.device.describe().eos, 0
        tokens = [int(self.device.prefill(ids, budget, untapped))]
        start = perf_counter()
        while not ended(tokens, eos, budget):
            times = [perf_counter()]
            drafts = self.device.draft(untapped)
            times.append(perf_counter())
            chosen = self.device.verify(drafts, untapped)
            times.append(perf_counter())
            tokens += [int(token) for token in self.device.commit(drafts, chosen, untapped)]
            times.append(perf_counter())
            self.passes.append(tuple(b - a for a, b in zip(times, times[1:], strict=False)))
            rounds += 1
        self.length = (len(tokens) - 1) / max(rounds, 1)
        return _rate(len(tokens) - 1, perf_counter() - start)


def _rate(tokens: int, seconds: float) -> float:
    if tokens < 1 or seconds <= 0:
        raise Inconclusive("the prompt ends with its first token: no speed to measure")
    return tokens / seconds
