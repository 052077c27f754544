"""Where a pipeline stands while a kernel of it runs, and kernels that look there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from parity.device.faults.planting import during, instead
from parity.device.pipeline import Pipeline


class Moment:
    """Where a pipeline stands: the verb, its round, the layer that runs, the rows of its pass.

    `accepted` is None behind a prefill; `committed` and `masked` count rows of the running draft pass, 0 outside one.
    Outside the four verbs, as in plain decoding, `kind` is empty.
    """

    kind, round, prompt, committed, masked = "", 0, 0, 0, 0
    accepted: int | None = None
    layer: int | None = None
    step: Any = None

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.engine = pipeline, pipeline.engine
        for verb in ("prefill", "draft", "verify", "commit"):
            instead(pipeline, verb, lambda clean, verb=verb: self._verb(clean, verb))
        instead(pipeline.drafter, "draft", self._drafting)
        instead(pipeline.target, "layer", self._target_layer)
        during(pipeline, "drafter:midlayer", lambda clean: self._drafter_layer(clean, 2))
        during(pipeline, "drafter:plain_layer", lambda clean: self._drafter_layer(clean, 1))

    @property
    def positions(self) -> np.ndarray:
        """Of the rows of the pass, padding included: int [W]; that of padding is the trash slot."""
        positions: np.ndarray = self.engine.host(self.step.slots)[0]
        return positions

    def host(self, x: Any) -> np.ndarray:
        """A copy on the host, in float32 where it is of floats."""
        value = self.engine.host(x)
        return value if value.dtype.kind in "iub" else value.astype(np.float32)

    def array(self, value: np.ndarray, like: Any) -> Any:
        """A host array where the kernels run, in the dtype of `like`."""
        return self.engine.array(np.ascontiguousarray(value), like.dtype)

    def changed(self, x: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
        """`change` of x, in its dtype."""
        return self.array(change(self.host(x)), x)

    def _verb(self, clean: Callable[..., Any], verb: str) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            self.kind = verb
            if verb == "prefill":
                self.prompt, self.round, self.accepted = self.prompt + 1, 0, None
            self.round += verb == "draft"
            try:
                made = clean(*arguments, **options)
            finally:
                self.kind = ""
            if verb == "commit":
                self.accepted = len(made) - 1
            return made

        return run

    def _drafting(self, clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(taps: Any, first: int, committed: np.ndarray, k: int, *rest: Any) -> Any:
            self.committed, self.masked = len(committed), max(k - 1, 0)
            try:
                return clean(taps, first, committed, k, *rest)
            finally:
                self.committed = self.masked = 0

        return run

    def _target_layer(self, clean: Callable[..., Any]) -> Callable[..., Any]:
        def run(held: int, x: Any, step: Any, tap: Any) -> Any:
            self.layer, self.step = held, step
            return clean(held, x, step, tap)

        return run

    def _drafter_layer(self, clean: Callable[..., Any], place: int) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            mine = arguments[place + 1]
            self.layer = next(n for n, one in enumerate(self.pipeline.drafter.layers) if one is mine)
            self.step = arguments[place]
            return clean(*arguments)

        return run


def alter(pipeline: Pipeline, place: str, change: Callable[..., Any]) -> None:
    """`change(moment, clean, *arguments)` stands for the kernel at this `module:name` of the device."""
    at = moment(pipeline)
    during(pipeline, place, lambda clean: lambda *given: change(at, clean, *given))


def replaced(pipeline: Pipeline, owner: Any, method: str, change: Callable[..., Any]) -> None:
    """`change(moment, clean, *arguments)` stands for a method of this one object."""
    at = moment(pipeline)
    instead(owner, method, lambda clean: lambda *given: change(at, clean, *given))


def moment(pipeline: Pipeline) -> Moment:
    """The one of this pipeline."""
    held = vars(pipeline)
    if "unseen_moment" not in held:
        held["unseen_moment"] = Moment(pipeline)
    at: Moment = held["unseen_moment"]
    return at


def writing(pipeline: Pipeline, side: str, change: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    """Rows and slots of each write to this side's caches are `change(moment, part, rows, slots)`, on the host."""
    at, model = moment(pipeline), getattr(pipeline, side)

    def make(clean: Any) -> Any:
        def write(held: Any, rows: Any, slots: Any) -> None:
            part = "k" if held is model.caches[at.layer][0] else "v"
            made = change(at, part, at.host(rows), at.host(slots))
            clean.write(held, at.array(made[0], rows), at.array(made[1], slots))

        return SimpleNamespace(write=write)

    during(pipeline, f"kernels.{side}_layer:cache", make)


def scaled(columns: slice | Iterable[int], factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """Columns of the last axis times a factor."""

    def change(value: np.ndarray) -> np.ndarray:
        value = value.copy()
        value[..., columns if isinstance(columns, slice) else list(columns)] *= factor
        return value

    return change
