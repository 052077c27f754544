"""The asynchronous loop: rounds are sent ahead of what is read, and whatever one needs of the last is on the device.

The host sends programs and reads what they tell it, a chunk of rounds at a time. It never says what a round's rows
are: ids, positions, slots, lengths and budgets are the round's own. What is static in a round it takes from an upper
bound of the length. `device/pipeline.py` and `device/decoding.py` are the same loop in its readable form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from parity.device.ahead import Standing, rounds_ahead
from parity.device.decoding import Generation
from parity.device.kernels.cache import rolled_back
from parity.device.kernels.round import Parts, State
from parity.device.kernels.rows import window
from parity.device.model import Model
from parity.device.pipeline import Pipeline
from parity.device.plan import Plan
from parity.device.rounds import speculated, stepped
from parity.errors import UsageError
from parity.seam import Description, OnRound, Shown, Tap
from parity.stages import PREFILL, declared

ROUND_SHOWS = ("drafter.draft_tokens", "verify.tokens", "accept.length", "accept.emitted")
"""What the host is told of a round."""

Told = Callable[[int, np.ndarray, np.ndarray, int], None]
"""Lane, drafts [K], the target's tokens [K+1], and how many of those came out."""


class Asynchronous:
    """A `parity.seam.Looping` over the weights and caches of a pipeline.

    Args:
        chunk: rounds that are read together; two chunks are in flight at the most.

    Attributes:
        sent: rounds and steps sent so far, those behind an end token included.

    Raises:
        UsageError: the pipeline does what this loop cannot.
    """

    def __init__(self, pipeline: Pipeline, chunk: int) -> None:
        drafter = pipeline.drafter
        if getattr(drafter, "on_device", None) is None:
            raise UsageError(f"loop=asynchronous: a drafter of the family {drafter.family} drafts on the host.")
        if drafter.config.partial is not None:
            raise UsageError("loop=asynchronous: with partial KV the host says which pages a pass writes.")
        if getattr(pipeline.engine, "sharding", None) is not None:
            raise UsageError("loop=asynchronous: it runs on one rank, tp=1.")
        self.pipeline, self.chunk, self.sent = pipeline, chunk, 0
        self.flying: deque[Any] = deque()

    @property
    def engine(self) -> Any:
        """The machine that it runs on."""
        return self.pipeline.engine

    def describe(self) -> Description:
        """What this device is: the prefill is shown whole, of a round what the host is told."""
        says = self.pipeline.describe()
        stages = declared(says.num_layers, says.num_drafter_layers, says.family)
        templates = {named.stage.template for named in stages.values() if PREFILL in named.stage.when}
        return replace(
            says,
            name=f"{says.name}, asynchronous",
            shown=(Shown("*", when="prefill"), *(Shown(stage, when="round") for stage in ROUND_SHOWS)),
            forcible=tuple(sorted(one.replace("{l}", "*") for one in templates)),
            notes=says.notes | {"loop": f"asynchronous, chunks of {self.chunk}, {self.sent} rounds sent"},
            varies_k=False,
            samples=False,
        )

    def speculate(
        self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap | None, on_round: OnRound
    ) -> list[int]:
        """See `parity.seam.Looping`; a round is told with the chunk that it is read in."""
        emitted = [self.pipeline.prefill(prompt_ids, max_new_tokens, tap)]
        on_round([], emitted)

        def told(lane: int, drafts: np.ndarray, tokens: np.ndarray, count: int) -> None:
            fresh = tokens[:count].tolist()
            emitted.extend(fresh)
            on_round(drafts.tolist(), fresh, tokens.tolist())

        self._run([self.pipeline], told, self.pipeline.k)
        return emitted

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """Prefill and rounds until an end token or the budget."""
        return self.generate_together([prompt_ids], [max_new_tokens])[0]

    def generate_together(self, prompts: Sequence[Sequence[int]], budgets: Sequence[int]) -> list[Generation]:
        """Several sequences at once, each with a lane of every round until all are over."""
        lanes = self._lanes(len(prompts))
        given = zip(lanes, prompts, budgets, strict=True)
        runs = [Generation([lane.prefill(ids, budget)]) for lane, ids, budget in given]

        def told(lane: int, drafts: np.ndarray, tokens: np.ndarray, count: int) -> None:
            runs[lane].take(drafts, tokens[:count])

        self._run(lanes, told, self.pipeline.k)
        self.lanes = lanes
        return runs

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Greedy decoding by the target alone, steps sent ahead as rounds are."""
        tokens = [self.pipeline.begin_plain(prompt_ids, max_new_tokens)]
        self._run([self.pipeline], lambda lane, drafts, chosen, count: tokens.extend(chosen[:count].tolist()), 0)
        return tokens

    def synchronize(self) -> None:
        """See `parity.seam.Synchronizes`."""
        self.pipeline.synchronize()

    def show_caches(self, tap: Tap) -> None:
        """See `parity.seam.Inspectable`."""
        self.pipeline.show_caches(tap)

    def take(self) -> np.ndarray:
        """Wait for the oldest round in flight: what it tells, a row for each lane."""
        told: np.ndarray = self.engine.host(self.flying.popleft())
        return told

    def _lanes(self, count: int) -> list[Pipeline]:
        return [self.pipeline, *(self.pipeline.lane(self.engine) for _ in range(count - 1))]

    def _run(self, lanes: Sequence[Pipeline], told: Told, k: int) -> None:
        """Rounds of K drafts, steps where K is 0, until every lane is over."""
        state, ends = begun(lanes, k), lanes[0].ends
        target = joined_parts([lane.target for lane in lanes])
        drafter = joined_parts([lane.drafter for lane in lanes]) if k else None
        standing = Standing(tuple(lane.target.length for lane in lanes), tuple(lane.left for lane in lanes))
        self.flying.clear()
        for reach in rounds_ahead(standing, k, self.chunk, partial(self._read, told, k)):
            plan = self._plan(reach, k)
            if drafter is None:
                state, tell = stepped(ends, state, target, plan)
            else:
                state, tell = speculated(ends, state, target, drafter, plan)
            self.flying.append(tell)
            self.sent += 1
        self._leave(lanes, state, [target] if drafter is None else [target, drafter])

    def _read(self, told: Told, k: int, standing: Standing, rounds: int) -> Standing:
        """Wait for the oldest rounds in flight, and pass on what they tell."""
        ends = self.pipeline.target.config.eos
        for _ in range(rounds):
            lanes = self.take()
            counts, over = lanes[:, -1].tolist(), []
            for lane, (row, count) in enumerate(zip(lanes, counts, strict=True)):
                drafts, tokens = row[:k], row[k:-1]
                if count:
                    told(lane, drafts, tokens, count)
                over.append(not count or int(tokens[count - 1]) in ends)
            standing = standing.behind(counts, over)
        return standing

    def _plan(self, reach: int, k: int) -> Plan:
        """What is static in a round behind which the cache has so many rows."""
        target, drafter = self.pipeline.target, self.pipeline.drafter
        plan = Plan(k, target.trash, target.span(reach), target.config, target.windows)
        if not k:
            return plan
        return replace(
            plan, taps=drafter.config.taps, drafter=drafter.config, draft=drafter.on_device, run_over=drafter.run_over
        )

    def _leave(self, lanes: Sequence[Pipeline], state: State, parts: Sequence[Parts]) -> None:
        """The lanes have their caches again, without what rejected drafts left, and the lengths of those."""
        lengths = state.length, state.cached
        for side, held, rows in zip(("target", "drafter"), parts, lengths, strict=False):
            caches, counts = rolled_back(rows, held.caches), self.engine.host(rows).tolist()
            for number, lane in enumerate(lanes):
                model: Model = getattr(lane, side)
                model.length = counts[number]
                model.caches = (
                    caches if len(lanes) == 1 else [tuple(one[number : number + 1] for one in pair) for pair in caches]
                )


def begun(lanes: Sequence[Pipeline], k: int) -> State:
    """Where sequences stand behind their prefill, for rounds of K drafts."""
    engine = lanes[0].engine
    states = [_state(lane, k, engine) for lane in lanes]
    if len(states) == 1:
        return states[0]
    columns = {one.name: [getattr(state, one.name) for state in states] for one in fields(State)}
    joined = {name: None if column[0] is None else np.concatenate(column, axis=0) for name, column in columns.items()}
    return State(**joined)


def _state(lane: Pipeline, k: int, engine: Any) -> State:
    # With a B axis in front an engine that runs copies makes as many of them.
    ints = engine.array(np.array([[1, lane.target.length, lane.drafter.length, lane.left]], np.int32))
    tokens = engine.array(np.full((1, k + 1), lane.last, np.int32))
    taps, row = lane.taps
    if k and taps is not None:
        taps = window(taps, engine.array(np.array([[row]]))[:, 0], k + 1)
    count, length, cached, left = (ints[:, number] for number in range(4))
    return State(tokens, count, length, cached, left, taps if k else None)


def joined_parts(models: Sequence[Model]) -> Parts:
    """The arrays of lanes that share their weights."""
    parts = models[0].parts
    if len(models) == 1:
        return parts
    layers = zip(*(model.caches for model in models), strict=True)
    return replace(
        parts, caches=[tuple(np.concatenate(one, axis=0) for one in zip(*pairs, strict=True)) for pairs in layers]
    )
