"""AWS's NKIPy example (gpt-oss with a P-EAGLE drafter) as a device: its own loop, and what a host sees of it.

parity diff --device docs.ports.nkipy_gpt_oss:load,root=CHECKOUT     (of any commit that has the drafter)
"""

from docs.ports.nkipy_eager import Example
from parity.adapters import PortTap
from parity.seam import Description, Shown

SHOWN = tuple(map(Shown, ("target.embed", "target.layers.*.out", "drafter.taps", "verify.tokens", "kv.*")))
LOGITS = (Shown("drafter.logits"),)  # a drafter in PyTorch keeps them to itself
FORCIBLE = ("target.*", "drafter.*", "verify.*", "kv.*.k", "kv.*.v")  # what is accepted the loop says


class Port:
    """`parity.seam.Looping`: a round begins where the loop drafts, and ends where it does so again."""

    def __init__(self, example):
        self.example, self.tap = example, PortTap(*example.layers)
        example.watch(self.prefilling, self.drafting, self.verifying, self.launching)

    def describe(self):
        own = self.example
        shown = SHOWN if own.drafter.__name__ == "DrafterCPU" else SHOWN + LOGITS
        return Description(
            "nkipy-example", own.precision, *own.layers, own.k, own.positions, own.eos,
            modules=tuple(own.modules), shown=shown, forcible=FORCIBLE,
        )  # fmt: skip

    def speculate(self, prompt_ids, max_new_tokens, tap, on_round):
        self.given, self.on_round, self.drafts, self.tokens, self.told = tap, on_round, [], [], 0
        self.caches, self.lengths, self.count, self.model = {"target": {}, "drafter": {}}, {}, 0, None
        with self.tap.during(tap, "prefill"):
            emitted = self.example.generate(prompt_ids, max_new_tokens)
        self.end_round()
        return emitted

    def end_round(self):
        emitted = self.example.emitted[self.told :]
        self.told += len(emitted)
        if self.drafts:
            self.lengths["target"] = self.start + len(emitted)
        with self.tap.during(self.given, "round" if self.drafts else "prefill"):
            for side, caches in self.caches.items():
                buffers = list(caches.values())
                if buffers:
                    self.tap.caches(side, list(zip(buffers[::2], buffers[1::2], strict=True)), self.lengths[side])
            if host := getattr(self.model, "kv_caches", None):  # of a drafter in PyTorch
                self.model.kv_caches = self.tap.caches("drafter", host, self.lengths["drafter"], "B G S D")
        self.on_round(self.drafts, emitted, self.tokens)

    def prefilling(self, call, drafter, ids, taps):
        self.model, self.lengths["drafter"] = drafter, len(ids)
        return call(drafter, ids, self.tap("drafter.taps", taps) if self.example.timed else taps)

    def drafting(self, call, drafter, *args):
        self.end_round()
        place = next(i for i, one in enumerate(args) if getattr(one, "ndim", 0) == 3)  # [1, C, 3H]
        self.count = args[place].shape[1]
        self.lengths["drafter"] = self.count + (args[2] if len(args) == 3 else 0)
        with self.tap.during(self.given, "round"):
            taps = self.tap("drafter.taps", args[place])
            self.drafts = self.tap("drafter.draft_tokens", call(drafter, *args[:place], taps, *args[place + 1 :]))
        return self.drafts

    def verifying(self, call, target, tokens, start):
        with self.tap.during(self.given, "round"):
            self.start, (chosen, taps) = start, call(target, tokens, start)
            self.tokens = self.tap("verify.tokens", chosen)
        return self.tokens, taps

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
        elif self.count and out.shape[-1] == self.example.vocab:  # of the K rows that draft, or of all
            first = 0 if out.shape[1] == self.example.k else self.count - 1
            self.tap.begin({"drafter.logits": slice(first, first + self.example.k)})
            self.tap.write("drafter.logits", out)
        if caches and side == "target":
            self.lengths[side] = out.shape[1] + (int(inputs["start_pos"].numpy()[0]) if "start_pos" in inputs else 0)


def load(target, drafter, k, precision, root="", max_positions=256, rounding="numpy"):
    """The factory; see `Example`."""
    return Port(Example(root, target, drafter, k, precision, int(max_positions), rounding))
