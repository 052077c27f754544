"""The asynchronous loop: rounds are sent ahead of what is read, and whatever one needs of the last is on the device.

The host sends programs and reads what they tell it, a chunk of rounds at a time. It never says what a round's rows are:
ids, positions, slots, lengths and budgets are the round's own. What is static in a round it takes from an upper bound of
the length. `device/pipeline.py` and `device/decoding.py` are the same loop in its readable form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity.device.ahead import Standing, rounds_ahead
from parity.device.decoding import Generation
from parity.device.kernels.round import State
from parity.device.kernels.rows import window
from parity.device.pipeline import Pipeline
from parity.device.plan import Plan
from parity.device.recorder import Recorder
from parity.device.rounds import speculated, stepped
from parity.errors import UsageError
from parity.seam import Description, OnRound, Shown, Tap
from parity.stages import PREFILL, declared

ROUND_SHOWS = ("drafter.draft_tokens", "verify.tokens", "accept.length", "accept.emitted")
"""What the host is told of a round."""


class Asynchronous:
    """A `parity.seam.Looping` over the weights and caches of a pipeline.

    Args:
        chunk: rounds that are read together; two chunks are in flight at the most.

    Raises:
        UsageError: the pipeline does what this loop cannot.
    """

    def __init__(self, pipeline: Pipeline, chunk: int) -> None:
        drafter = pipeline.drafter
        if getattr(drafter, "on_device", None) is None:
            raise UsageError(f"loop=asynchronous: {drafter.family} drafters look for their drafts on the host.")
        if drafter.config.partial is not None:
            raise UsageError("loop=asynchronous: partial KV chooses pages by rows that the host knows.")
        self.pipeline, self.chunk = pipeline, chunk
        self.sent = 0

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
            fresh = [int(token) for token in tokens[:count]]
            emitted.extend(fresh)
            on_round(drafts.tolist(), fresh, tokens.tolist())

        if not self.pipeline.finished:
            state = self._begun([self.pipeline])
            self._leave(self._rounds(state, told))
        return emitted

    def generate(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Generation:
        """What `Pipeline.generate` gives."""
        run = Generation()

        def over(drafts: Any, emitted: Any, tokens: Any = None) -> None:
            run.tokens += emitted
            if tokens is not None:
                agreed = np.append(np.array(drafts[: len(emitted)]) == np.array(emitted[: len(drafts)]), False)
                run.acceptance_lengths.append(len(emitted))
                run.accepted_drafts.append(int(np.argmin(agreed)))

        self.speculate(prompt_ids, max_new_tokens, None, over)
        return run

    def show_caches(self, tap: Tap) -> None:
        """See `parity.seam.Remaining`."""
        record = Recorder(tap, self.engine)
        self.pipeline.target.record(record)
        self.pipeline.drafter.record(record)

    def _begun(self, pipelines: Sequence[Pipeline]) -> State:
        """Where sequences stand behind their prefill."""
        (pipeline,) = pipelines
        k, array, target = pipeline.k, self.engine.array, pipeline.target
        taps, row = pipeline._taps
        tokens = np.repeat(pipeline._emitted[None, :1], k + 1, axis=1)
        ints = (array(np.array([one], np.int32)) for one in (1, target.length, pipeline.drafter.length, pipeline._left))
        count, length, cached, left = ints
        taps = None if taps is None else window(taps, array(np.array([row])), k + 1)
        return State(array(tokens.astype(np.int32)), count, length, cached, left, taps)

    def _rounds(self, state: State, told: Callable[..., None]) -> State:
        """Rounds until every sequence is over; the state behind them."""
        pipeline, k = self.pipeline, self.pipeline.k
        flying: deque[Any] = deque()
        self._flying = flying
        standing = Standing((pipeline.target.length,), (pipeline._left,))
        for reach in rounds_ahead(standing, k, self.chunk, partial(self._read, told)):
            state, tell = speculated(
                pipeline._ends, state, pipeline.target.parts, pipeline.drafter.parts, self._plan(reach)
            )
            flying.append(tell)
            self.sent += 1
        return state

    def _read(self, told: Callable[..., None], standing: Standing, rounds: int) -> Standing:
        """Wait for the oldest rounds in flight, and pass on what they tell."""
        k, ends = self.pipeline.k, self.pipeline.target.config.eos
        for _ in range(rounds):
            lanes = self.engine.host(self._flying.popleft())
            counts = lanes[:, -1].tolist()
            over = []
            for lane, (row, count) in enumerate(zip(lanes, counts, strict=True)):
                tokens = row[k : 2 * k + 1]
                if count:
                    told(lane, row[:k], tokens, count)
                over.append(bool(count) and int(tokens[count - 1]) in ends or not standing.left[lane])
            standing = standing.behind(counts, over)
        return standing

    def _plan(self, reach: int) -> Plan:
        pipeline = self.pipeline
        target, drafter = pipeline.target, pipeline.drafter
        return Plan(
            k=pipeline.k,
            trash=target.trash,
            span=target.span(reach),
            target=target.config,
            windows=target.windows,
            taps=drafter.config.taps,
            drafter=drafter.config,
            draft=drafter.on_device,
            run_over=drafter.run_over,
        )

    def _leave(self, state: State) -> None:
        """The pipeline's lengths are those of its caches again."""
        pipeline = self.pipeline
        pipeline.target.length = int(self.engine.host(state.length)[0])
        pipeline.drafter.length = int(self.engine.host(state.cached)[0])
