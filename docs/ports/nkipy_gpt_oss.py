"""AWS's NKIPy example (gpt-oss with a P-EAGLE drafter) as a device: its own loop, and what a host sees of it.

    parity diff --device docs.ports.nkipy_gpt_oss:factory,root=CHECKOUT

CHECKOUT holds `examples/models/gpt_oss` of any commit that has the drafter. The example's `main` runs as it is and stops
where it has drafted, where it has verified and where it drafts again; stages are read, and written, at those calls and
at kernel launches.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from transformers import AutoConfig

from docs.ports.host_loop import HostLoop
from docs.ports.nkipy_eager import DeviceKernel, Example
from parity.adapters import PortTap
from parity.seam import Description, Shown

SHOWN = (Shown("target.embed"), Shown("target.layers.*.out"), Shown("drafter.taps"), Shown("kv.target.*"))
OF_KERNELS = (Shown("drafter.logits"), Shown("kv.drafter.*"))
FORCIBLE = ("target.*", "drafter.*", "verify.*", "kv.*.k", "kv.*.v")


def factory(target: Path, drafter: Path, k: int, precision: str, root: str = "", max_positions: int = 256) -> Port:
    """The example of a checkout, $PARITY_NKIPY_EXAMPLE by default."""
    return Port(Path(root or os.environ["PARITY_NKIPY_EXAMPLE"]), target, drafter, k, precision, int(max_positions))


class Port:
    """The five verbs; the loop runs as far as belongs to each. It is the example's tokenizer as well."""

    chat_template = None

    def __init__(self, root: Path, target: Path, drafter: Path, k: int, precision: str, positions: int) -> None:
        example = Example(root, target, drafter, precision, positions, self, self.timed)
        spec, self.paths, self.loop = example.speculate, (str(target), str(drafter)), HostLoop(example.speculate.main)
        configs = [AutoConfig.from_pretrained(path) for path in self.paths]
        layers, self.vocab = [config.num_hidden_layers for config in configs], configs[1].draft_vocab_size
        self.tap, self.main, self.k = PortTap(*layers), spec.main, k
        drafters = [n for n in ("_DeviceDrafterAdapter", "DrafterCPU", "DrafterModel") if n in vars(spec)]
        shown = SHOWN if drafters[0] == "DrafterCPU" else SHOWN + OF_KERNELS
        self.description = Description(
            "nkipy-example", precision, *layers, k, positions, tuple(configs[0].eos_token_id),
            modules=tuple(example.modules), shown=shown, forcible=FORCIBLE, transactional=False,
        )  # fmt: skip
        for kind, verb in (vars(spec)[drafters[0]], "prefill"), (vars(spec)[drafters[0]], "draft"):
            if hasattr(kind, verb):
                setattr(kind, verb, self.drafting(getattr(kind, verb)))
        spec.SpeculativeGptOss.verify = self.verifying(spec.SpeculativeGptOss.verify)
        DeviceKernel.__call__ = self.launching(DeviceKernel.launch)

    def describe(self) -> Description:
        return self.description

    def timed(self) -> None:
        """The example's barrier: what ran before was a warm-up."""
        self.live = True

    def __call__(self, text, return_tensors):
        return {"input_ids": self.prompt}

    def decode(self, ids) -> str:
        self.emitted += ids
        return ""

    def drafting(self, call):
        def stopping(drafter, *args):
            place = next(i for i, one in enumerate(args) if torch.is_tensor(one) and one.ndim == 3)
            if call.__name__ == "draft":
                self.loop.stop("drafting")
                self.committed = args[place].shape[1]
            self.lengths["drafter"] = (args[2] if len(args) > 2 else 0) + args[place].shape[1]
            if self.live:
                args = (*args[:place], self.tap("drafter.taps", args[place]), *args[place + 1 :])
            drafts = call(drafter, *args)
            return self.loop.stop("drafted", drafts) if call.__name__ == "draft" else drafts

        return stopping

    def verifying(self, call):
        def stopping(target, tokens, start):
            self.start = start
            chosen, taps = call(target, tokens, start)
            return self.loop.stop("verified", chosen), taps

        return stopping

    def launching(self, launch):
        def tapped(kernel, inputs, outputs):
            side = "drafter" if kernel.name.startswith("drafter") else "target"
            out, shown = outputs["output0"], self.live and kernel.name.startswith(("cte_layer", "verify_layer"))
            for key, one in inputs.items():
                if key.startswith("cache"):
                    layer = int(re.findall("[0-9]+", one.name)[-1])
                    self.caches[side][layer, key[6]] = one
            if shown and layer == 0:
                self.tap.write("target.embed", inputs["x"])
            launch(kernel, inputs, outputs)
            if side == "target" and "layer" in kernel.name:
                self.lengths[side] = out.shape[1] + (inputs["start_pos"].numpy()[0] if "start_pos" in inputs else 0)
            if shown:
                self.tap.write(f"target.layers.{layer}.out", out)
            if self.live and kernel.name == "cte_greedy_sampling":
                self.tap.write("target.tokens", out)
            if self.committed and out.shape[-1] == self.vocab:
                first = 0 if out.shape[1] == self.k else self.committed - 1
                self.tap.begin({"drafter.logits": slice(first, first + self.k)})
                self.tap.write("drafter.logits", out)

        return tapped

    def record_caches(self) -> None:
        for side, caches in self.caches.items():
            if caches:
                pairs = [(caches[layer, "k"], caches[layer, "v"]) for layer in range(len(caches) // 2)]
                self.tap.caches(side, pairs, int(self.lengths[side]))

    def prefill(self, prompt_ids, max_new_tokens, tap) -> int:
        self.loop.abandon()
        self.loop, self.prompt, self.emitted = HostLoop(self.main), np.array([prompt_ids]), []
        self.caches, self.lengths, self.committed, self.live = {"target": {}, "drafter": {}}, {}, 0, False
        folders = ["--model", self.paths[0], "--draft-model", self.paths[1], "--draft-checkpoint", tempfile.gettempdir()]
        argv = ["speculate", "-k", str(self.k), "-n", str(max_new_tokens), *folders]
        with self.tap.during(tap), mock.patch.object(sys, "argv", argv):
            self.loop.go(None, "drafting", "end")
            self.record_caches()
        return self.emitted[0]

    def draft(self, tap) -> np.ndarray:
        with self.tap.during(tap):
            return np.array(self.loop.go(None, "drafted"))

    def verify(self, draft_tokens, tap) -> np.ndarray:
        with self.tap.during(tap):
            return np.array(self.loop.go([int(i) for i in draft_tokens], "verified"))

    def commit(self, draft_tokens, verify_tokens, tap) -> np.ndarray:
        self.emitted = []
        with self.tap.during(tap):
            self.loop.go([int(i) for i in verify_tokens], "drafting", "end")
            self.lengths["target"] = self.start + len(self.emitted)
            self.record_caches()
        return np.array(self.emitted)
