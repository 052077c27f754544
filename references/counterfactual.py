"""The references under hypotheses: what the stages would hold if these things were wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parity.references.drafting import load_loop
from parity.references.hypotheses.catalogue import Hypothesis
from parity.references.hypotheses.mutating import NotApplicable
from parity.references.loop_state import Recorder, Result
from parity.references.products import LayerBack, Product, entering_layer, watched
from parity.references.remembered import RememberedLayers

Assumed = Sequence[tuple[Hypothesis, Any]]
"""Hypotheses with their values, applied in this order."""


class Counterfactuals:
    """The references of a pair of checkpoints, loaded once, run under any set of hypotheses."""

    def __init__(
        self,
        target: Path,
        drafter: Path,
        k: int | Sequence[int],
        precision: str = "float32",
        partial_kv: str = "",
        kv_cache: str = "",
    ):
        dtype = getattr(torch, precision)
        self.loop: Any = load_loop(target, drafter, dtype, k, partial_kv=partial_kv, kv_cache=kv_cache)
        self.layers = RememberedLayers(self.loop.target)

    def run(
        self, assumed: Assumed, ids: Sequence[int], budget: int, recorder: Recorder, rounds: int | None = None
    ) -> Result:
        """Take one prompt through the loop with all of `assumed` in force.

        Args:
            assumed: hypotheses with their values; none of them gives the references themselves.
            ids: the prompt.
            budget: tokens to emit at most.
            recorder: a forcing trace (local or chained), or a plain one for what the pair would do freely.
            rounds: stop after so many verify rounds, whatever is left of the budget.

        Raises:
            NotApplicable: a hypothesis has nothing to change here, or they do not go together.
        """
        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(self.loop.finished.around(_after(budget if rounds is None else rounds)))
            for hypothesis, value in assumed:
                stack.enter_context(hypothesis.apply(self.loop, value))
            for layer in self.loop.drafter.stack:
                stack.enter_context(layer.self_attn.attend.around(_over_what_is_there))
            try:
                result: Result = self.loop.run(ids, budget, recorder)
                return result
            except (RuntimeError, IndexError, KeyError, ValueError) as error:
                if not assumed:
                    raise
                names = " and ".join(hypothesis.id for hypothesis, _ in assumed)
                raise NotApplicable(f"{names}: no run comes of it ({error!r:.200})") from error

    def products(
        self,
        stage: str,
        ids: Sequence[int],
        budget: int,
        recorder: Recorder,
        rounds: int | None = None,
        hidden: Sequence[str] = (),
    ) -> Sequence[Product]:
        """What a stage's rows are a product of, in a run without any hypothesis; nothing where they are none.

        Args:
            stage: its full name.
            ids, budget, recorder, rounds: as in `run`.
            hidden: what leaves the layers in front of it that are not shown, the nearest first.
        """
        try:
            with watched(self.loop, stage, hidden) as made:
                self.run((), ids, budget, recorder, rounds)
                return made()
        except (LookupError, NotApplicable):
            return ()

    def layers_back(
        self, stages: Sequence[str], ids: Sequence[int], budget: int, recorder: Recorder, rounds: int | None = None
    ) -> Mapping[str, LayerBack]:
        """Of what leaves layers, by stage, the way back to what entered each, in a run without any hypothesis; nothing
        of a layer that has none.

        Args:
            stages: full names, `target.layers.3.out`.
            ids, budget, recorder, rounds: as in `run`.
        """
        made: dict[str, Callable[[], LayerBack]] = {}
        found: dict[str, LayerBack] = {}
        with ExitStack() as stack:
            for stage in stages:
                with suppress(LookupError):
                    made[stage] = stack.enter_context(entering_layer(self.loop, stage))
            self.run((), ids, budget, recorder, rounds)
            for stage, way in made.items():
                with suppress(LookupError):
                    found[stage] = way()
        return found


def _over_what_is_there(attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """A cache that lost rows is shorter than the slots say: the mask loses the oldest columns' newest ones."""
    missing = mask.shape[-1] - k.shape[2]
    if missing:
        rows = q.shape[2]
        mask = torch.cat((mask[..., : k.shape[2] - rows], mask[..., -rows:]), dim=-1)
    return attend(q, k, v, mask)


def _after(rounds: int) -> Callable[[Callable[[], bool]], bool]:
    """The loop's end, or so many rounds: a mutated loop may never come to its own."""
    begun = count()
    return lambda finished: finished() or next(begun) >= rounds
