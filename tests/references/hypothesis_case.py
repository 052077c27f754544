"""One prompt through the references, under hypotheses and without them: what they change first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from parity.references.counterfactual import Counterfactuals
from parity.references.hypotheses import HYPOTHESES
from parity.references.prompts import read_prompts
from parity.stages import dataflow, declared
from parity.trace import ForcingTrace, Trace, forced_names

BY_ID = {hypothesis.id: hypothesis for hypothesis in HYPOTHESES}
BUDGET = 14
FIRST_VALUES = {
    "tap-config-ignored": "thirds",
    "input-chunk-boundary": 7,
    "rope-beta-fast": 4.0,
    "rope-concentration-drafter": "applied",
    "drafter-window": 16,
    "load-experts-exchanged": (2, 1, 4),
    "load-experts-exchanged-gate-up": (2, 1, 4),
    "load-experts-exchanged-gate-up-and-bias": (2, 1, 4),
    "load-experts-exchanged-down": (2, 1, 4),
    "load-experts-exchanged-down-and-bias": (2, 1, 4),
    "input-other-ids": ((5, 7), (71, 9)),
    **{f"rope-table-{how}{end}": 16 for how in ("short", "begun-anew") for end in ("", "-drafter")},
}
IN_PASSES = ("in-verify", "in-prefill")
FIRST_VALUES |= {f"rope-beta-fast-{end}": 4.0 for end in IN_PASSES}
"""The first value that means anything to the tiny pair, where the usual one does not."""


class Enough(Exception):
    """A difference was found: the rounds behind it need not run."""


class Case:
    """One prompt of the tiny pair: past the window and the original context, with rounds of 1, 1, 4 and 4 drafts."""

    def __init__(
        self,
        tiny: Path,
        target: str = "target",
        ids=None,
        budget: int = BUDGET,
        drafter: str = "drafter",
        partial_kv: str = "",
        kv_cache: str = "",
    ):
        torch.set_num_threads(1)
        self.counterfactuals = Counterfactuals(tiny / target, tiny / drafter, 4, "float32", partial_kv, kv_cache)
        config = self.counterfactuals.loop.drafter.config
        layers = self.counterfactuals.loop.target.config.num_hidden_layers
        self.names = declared(
            layers, config.num_layers, config.family, pages=bool(partial_kv), quantised=bool(kv_cache)
        )
        self.ids = ids or read_prompts(tiny / "prompts/chat.jsonl", tiny / target, 1280)[3][1][3:75]
        self.budget = budget
        self.retell()

    def retell(self) -> None:
        """Take the references' own run as the truth."""
        record = Trace(self.names)
        self.result = self.counterfactuals.run((), self.ids, self.budget, record)
        self.truth = record.tensors

    def run(self, assumed, mode="local", stop=False) -> ForcingTrace:
        trace = ForcingTrace(
            self.names, lambda round_, stage: self.truth.get((round_, stage)), forced_names(mode, self.names)
        )
        if stop:
            begin = trace.begin

            def enough(round_):
                if self.first(trace, round_):
                    raise Enough
                begin(round_)

            trace.begin = enough
        with suppress(Enough):
            self.counterfactuals.run(assumed, self.ids, self.budget, trace)
        return trace

    def first(self, trace: Trace, before: int = 99) -> str | None:
        """The first stage, in the order data flows, in which a run differs from the truth."""
        for round_ in range(min(before, len(self.result.acceptance_length) + 1)):
            for named in dataflow(self.names.values(), round_):
                if differ(trace.tensors.get((round_, named.name)), self.truth.get((round_, named.name))):
                    return named.name
        return None


def differ(mine, true) -> bool:
    """Beyond float32 rounding; another shape or a missing tensor counts."""
    if mine is None or true is None:
        return (mine is None) != (true is None)
    if mine.shape != true.shape:
        return True
    if true.dtype.kind in "iub":
        return not np.array_equal(mine, true)
    return not np.linalg.norm(mine - true) <= 1e-5 * np.linalg.norm(true)


def state(loop) -> dict:
    """Everything that a mutation may replace, by identity; what a run itself writes is left out."""
    run = ("state", "cache", "tap", "streams")
    modules = [*loop.target.model.named_modules(), *loop.drafter.named_modules()]
    found = {("loop", key): id(value) for key, value in vars(loop).items() if key not in run}
    found |= {("target", key): id(value) for key, value in vars(loop.target).items() if key not in run}
    for name, module in modules:
        found |= {(name, key): id(value) for key, value in vars(module).items() if key != "parity_tap"}
        found[name, "hooks"] = len(module._forward_hooks)
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        found |= {(name, key): tensor.data_ptr() for key, tensor in tensors}
    return found


def value_of(hypothesis):
    """The value to test a hypothesis with."""
    if hypothesis.part:
        return hypothesis.sized(0, 0, 0.5)
    values = [FIRST_VALUES[hypothesis.id]] if hypothesis.id in FIRST_VALUES else hypothesis.values
    return values[0] if values else 0.5
