"""AWS's NKIPy example (gpt-oss with a P-EAGLE drafter) as a device: its own loop, and what a host sees of it.

parity diff --device docs.ports.nkipy_gpt_oss:load,root=CHECKOUT     (of any commit that has the drafter)
"""

import os
from pathlib import Path

import numpy as np

from docs.ports.host_loop import HostLoop
from docs.ports.nkipy_eager import Example, Rounded
from parity.adapters import PortTap
from parity.seam import Description, Shown

SHOWN = tuple(map(Shown, ("target.embed", "target.layers.*.out", "drafter.taps", "kv.target.*")))
OF_KERNELS = (Shown("drafter.logits"), Shown("kv.drafter.*"))  # a drafter in PyTorch keeps them to itself
FORCIBLE = ("target.*", "drafter.*", "verify.*", "kv.*.k", "kv.*.v")


class Port:
    """The five verbs. The loop stops where it drafts, has drafted and has verified, and is told how to continue."""

    def __init__(self, example, precision):
        self.example, self.loop = example, HostLoop(example.main)
        target, drafter = example.target_config, example.drafter_config
        layers, self.vocab = (target.num_hidden_layers, drafter.num_hidden_layers), drafter.draft_vocab_size
        shown = SHOWN if example.drafter.__name__ == "DrafterCPU" else SHOWN + OF_KERNELS
        self.description = Description(
            "nkipy-example", precision, *layers, example.k, example.positions, tuple(target.eos_token_id),
            modules=tuple(example.modules), shown=shown, forcible=FORCIBLE, transactional=False,
        )  # fmt: skip
        self.tap = PortTap(*layers)
        example.watch(self.prefilling, self.drafting, self.verifying, self.launching)

    def describe(self):
        return self.description

    def prefilling(self, call, drafter, ids, taps):
        self.lengths["drafter"] = len(ids)
        return call(drafter, ids, self.tap("drafter.taps", taps) if self.example.timed else taps)

    def drafting(self, call, drafter, *args):
        self.loop.stop("drafting")
        place = next(i for i, one in enumerate(args) if getattr(one, "ndim", 0) == 3)  # [1, C, 3H]
        self.count = args[place].shape[1]
        self.lengths["drafter"] = self.count + (args[2] if len(args) == 3 else 0)
        taps = self.tap("drafter.taps", args[place])
        return self.loop.stop("drafted", call(drafter, *args[:place], taps, *args[place + 1 :]))

    def verifying(self, call, target, tokens, start):
        self.start, (chosen, taps) = start, call(target, tokens, start)
        return self.loop.stop("verified", chosen), taps

    def launching(self, kernel, inputs, outputs):
        side, out = "drafter" if kernel.name.startswith("drafter") else "target", outputs["output0"]
        caches = {buffer.name: buffer for name, buffer in inputs.items() if name.startswith("cache")}
        self.caches[side] |= caches
        seen = self.example.timed and kernel.name.startswith(("cte_layer", "verify_layer"))
        if seen and next(iter(self.caches[side])) in caches:
            self.tap.write("target.embed", inputs["x"])
        kernel.launch(inputs, outputs)
        if seen:
            self.tap.write("target.layers.{l}.out", out)
        elif kernel.name == "cte_greedy_sampling":
            self.tap.write("target.tokens", out)
        elif out.shape[-1] == self.vocab:  # of the K rows that draft, or of all
            first = 0 if out.shape[1] == self.example.k else self.count - 1
            self.tap.begin({"drafter.logits": slice(first, first + self.example.k)})
            self.tap.write("drafter.logits", out)
        if caches and side == "target":
            self.lengths[side] = out.shape[1] + (int(inputs["start_pos"].numpy()[0]) if "start_pos" in inputs else 0)

    def hand_over_caches(self):
        for side, caches in self.caches.items():
            if caches:
                buffers = list(caches.values())
                self.tap.caches(side, list(zip(buffers[::2], buffers[1::2], strict=True)), self.lengths[side])

    def prefill(self, prompt_ids, max_new_tokens, tap):
        self.example.prompt, self.example.budget, self.example.emitted = list(prompt_ids), max_new_tokens, []
        self.caches, self.lengths, self.count = {"target": {}, "drafter": {}}, {}, 0
        self.loop.abandon()
        self.loop = HostLoop(self.example.main)
        with self.tap.during(tap, "prefill"):
            self.loop.go(None, "drafting", "end")
            self.hand_over_caches()
        return self.example.emitted[0]

    def draft(self, tap):
        with self.tap.during(tap, "round"):
            return np.array(self.loop.go(None, "drafted"))

    def verify(self, draft_tokens, tap):
        with self.tap.during(tap, "round"):
            return np.array(self.loop.go(list(map(int, draft_tokens)), "verified"))

    def commit(self, draft_tokens, verify_tokens, tap):
        self.example.emitted = []
        with self.tap.during(tap, "round"):
            self.loop.go(list(map(int, verify_tokens)), "drafting", "end")
            self.lengths["target"] = self.start + len(self.example.emitted)
            self.hand_over_caches()
        return np.array(self.example.emitted)


def load(target, drafter, k, precision, root="", max_positions=256, rounding="numpy"):
    """The factory; the checkout is $PARITY_NKIPY_EXAMPLE by default; `rounding=compiler` is bfloat16 as on a device."""
    arrays = {"numpy": np.ndarray, "compiler": Rounded}[rounding]
    root = Path(root or os.environ["PARITY_NKIPY_EXAMPLE"])
    return Port(Example(root, target, drafter, k, precision, int(max_positions), arrays), precision)
