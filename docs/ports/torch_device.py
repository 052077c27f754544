"""The PyTorch port as a device: forward hooks by a table of names, nothing of the modules changed.

parity dump-golden --reference plain && parity diff --device docs.ports.torch_device:load
"""

from __future__ import annotations

import numpy as np

from docs.ports import torch_port
from parity.adapters import Hooked, PortTap, hook_modules
from parity.seam import Description, Shown

TARGET = {
    "model.embed_tokens": "target.embed",
    "model.layers.{l}.input_layernorm": "target.layers.{l}.attn_in",
    "model.layers.{l}.self_attn": "target.layers.{l}.attn_out",
    "model.layers.{l}.mlp.router": (
        Hooked("target.layers.{l}.router_logits"),
        Hooked("target.layers.{l}.experts", part=2),
    ),
    "model.layers.{l}.mlp": "target.layers.{l}.ffn_out",
    "model.layers.{l}": "target.layers.{l}.out",
    "model.norm": "target.pre_head_hidden",
    "lm_head": "{head}.logits",
}
DRAFTER = {
    "fc": (Hooked("drafter.taps", takes=True), "drafter.fc_out"),
    "midlayer.self_attn": "drafter.layers.0.attn_out",
    "midlayer.mlp": "drafter.layers.0.ffn_out",
    "midlayer": "drafter.layers.0.out",
    "layers.{l}.self_attn": "drafter.layers.{l}.attn_out",
    "layers.{l}.mlp": "drafter.layers.{l}.ffn_out",
    "layers.{l}": "drafter.layers.{l}.out",
    "norm": "drafter.pre_head_hidden",
    "lm_head": "drafter.logits",
}
STAGES = ("embed", "attn_in", "*_out", "*.layers.*.out", "pre_head_hidden", "*.logits", "taps", "kv.*")
CHOSEN = ("router_logits", "experts")  # a router's output, of which the weights are made before a hook sees it


class TorchDevice:
    """The five verbs over the port's own steps."""

    def __init__(self, port: torch_port.Speculator, precision: str):
        self.port, self.precision, self.left = port, precision, 0
        self.tap = PortTap(len(port.target.model.layers), 1 + len(port.drafter.layers))
        hook_modules(self.tap, port.target, TARGET)
        hook_modules(self.tap, port.drafter, DRAFTER)

    def describe(self):
        target, drafter = self.port.target.config, self.port.drafter.config
        return Description(
            name="torch port",
            precision=self.precision,
            num_layers=target.num_hidden_layers,
            num_drafter_layers=drafter["num_hidden_layers"],
            k=self.port.k,
            max_positions=min(target.max_position_embeddings, drafter["max_position_embeddings"]),
            eos=tuple(self.port.target.generation_config.eos_token_id),
            modules=(torch_port.__name__, type(self.port.target).__module__),
            shown=tuple(map(Shown, (*STAGES, *CHOSEN))),
            forcible=STAGES,
            transactional=False,
        )

    def prefill(self, prompt_ids, max_new_tokens, tap):
        with self.tap.during(tap, "prefill", head="target"):
            first, self.left = self.port.prefill(list(prompt_ids)), max_new_tokens - 1
            self.hand_over_caches()
        return first

    def draft(self, tap):
        count = len(self.port.fresh)
        drafting = slice(count - 1, None)
        with self.tap.during(tap, "round", {"taps": count, "pre_head_hidden": drafting, "drafter.logits": drafting}):
            return np.array(self.port.draft())

    def verify(self, draft_tokens, tap):
        with self.tap.during(tap, "round", head="verify"):
            return np.array(self.port.verify([int(token) for token in draft_tokens]))

    def commit(self, draft_tokens, verify_tokens, tap):
        drafts, tokens = ([int(token) for token in ids] for ids in (draft_tokens, verify_tokens))
        with self.tap.during(tap, "round"):
            emitted = self.port.accept(drafts, tokens, self.left)
            self.left -= len(emitted)
            self.hand_over_caches()
        return np.array(emitted)

    def hand_over_caches(self):
        port = self.port
        held = [(layer.keys, layer.values) for layer in port.cache.layers]
        taken = self.tap.caches("target", held, port.length, axes="B G S D")
        for layer, pair in zip(port.cache.layers, taken, strict=True):
            layer.keys, layer.values = pair
        drafter = [layer.self_attn for layer in (port.drafter.midlayer, *port.drafter.layers.values())]
        held = [attention.cache for attention in drafter]
        taken = self.tap.caches("drafter", held, port.length - len(port.fresh), axes="B G S D")
        for attention, pair in zip(drafter, taken, strict=True):
            attention.cache = pair


def load(target, drafter, k, precision):
    """The factory."""
    return TorchDevice(torch_port.Speculator(target, drafter, k, precision), precision)
