"""The PyTorch port sampling by somebody else's accept rule, as a device: transformers' own, or vLLM's.

parity dump-golden --reference plain
parity gate --device docs.ports.torch_sampling:load,rule=transformers --only sampling

Logits are the port's, drafts are drawn behind the processors of the settings; the rule decides what becomes of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from docs.ports import torch_port
from docs.ports.torch_device import TorchDevice
from docs.ports.transformers_rule import TransformersRule
from docs.ports.vllm_rule import VllmRule
from parity.seam import DRAWS

RULES = {"transformers": TransformersRule, "vllm": VllmRule, "vllm-whole": lambda: VllmRule(whole=True)}


class SamplingSpeculator(torch_port.Speculator):
    """The port with a rule in the place of its argmax."""

    settings = None

    def sample(self, settings, table):
        self.settings, self.table = settings, table

    def prefill(self, ids):
        self.round = 0
        first = super().prefill(ids)
        self.round = 1
        return first

    def verify(self, drafts):
        self.drafts = drafts
        return super().verify(drafts)

    def accept(self, drafts, tokens, left):
        self.round += 1
        return super().accept(drafts, tokens, left)

    def choose(self, what, logits):
        if self.settings is None:
            return super().choose(what, logits)
        logits = logits.float().numpy()
        if what == "verify":
            return torch.tensor(self.decided(logits))
        if what == "draft":
            self.proposed = logits
        numbers = self.table[self.round, DRAWS.index("draft" if what == "draft" else "target"), : len(logits)]
        return torch.tensor(self.rule.draw(self.settings, logits, numbers))

    def decided(self, logits):
        offsets = self.drafter.d2t.numpy()
        proposed = np.full((len(self.drafts), logits.shape[1]), -np.inf, np.float32)
        proposed[:, np.arange(len(offsets)) + offsets] = self.proposed[: len(self.drafts)]
        drafts, numbers = np.array([self.drafts]), self.table[self.round, :, : len(logits)]
        return self.rule.decide(self.settings, logits[None], proposed[None], drafts, numbers[None])[0]


class SamplingDevice(TorchDevice):
    """Its five verbs, and what the sampling gate asks beside them."""

    def describe(self):
        return replace(super().describe(), samples=True, own_numbers=self.port.rule.own_numbers)

    def sample(self, settings, uniforms):
        if settings is not None:
            self.port.rule.refuse(settings)
        self.port.sample(settings, uniforms)

    def decide(self, settings, target_logits, draft_logits, drafts, uniforms):
        self.port.rule.refuse(settings)
        return self.port.rule.decide(settings, target_logits, draft_logits, drafts, uniforms)


def load(target, drafter, k, precision, rule: str = "transformers"):
    """The factory."""
    port = SamplingSpeculator(target, drafter, k, precision)
    port.rule = RULES[rule]()
    return SamplingDevice(port, precision)
