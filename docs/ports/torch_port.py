"""A port as PyTorch modules: transformers' own gpt-oss, and a P-EAGLE drafter (arXiv 2602.01469) on the host.

Nothing here knows of parity; `torch_device.py` is the adapter. Parameters have the checkpoint's names.
Shapes: B = 1, W rows, H hidden, N heads in G groups, D per head, T cached rows.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, GptOssForCausalLM

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def inverse_frequencies(config):
    """llama3: long wavelengths slowed down by the factor, a ramp between."""
    rope = config["rope_scaling"]
    plain = config["rope_theta"] ** (-torch.arange(0, config["head_dim"], 2, dtype=torch.float64) / config["head_dim"])
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])).clamp(0, 1)
    return plain * (kept + (1 - kept) / rope["factor"])


def rotate(x, angle):
    """x [B, heads, W, D] by angles [W, D/2]; a pair is one number of each half."""
    one, other = x.float().chunk(2, dim=-1)
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1).to(x.dtype)


class Norm(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.empty(config["hidden_size"])), config["rms_norm_eps"]

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()).to(x.dtype)


class Attention(nn.Module):
    """Causal attention over all cached rows; layer 0 takes the embeddings beside the hidden."""

    def __init__(self, config, width):
        super().__init__()
        self.size, hidden = config["head_dim"], config["hidden_size"]
        query, key = (config[f"num_{part}_heads"] * self.size for part in ("attention", "key_value"))
        self.q_proj, self.k_proj = nn.Linear(width, query, bias=False), nn.Linear(width, key, bias=False)
        self.v_proj, self.o_proj = nn.Linear(width, key, bias=False), nn.Linear(query, hidden, bias=False)
        self.cache = None

    def forward(self, x, start, angle):
        q, k, v = (
            part(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        k = rotate(k, angle)
        if start:  # rows behind `start` are dead
            k, v = (torch.cat([old[:, :, :start], new], dim=2) for old, new in zip(self.cache, (k, v), strict=True))
        self.cache = k, v
        seen = torch.ones(x.shape[1], k.shape[2], dtype=torch.bool).tril(start)
        mixed = F.scaled_dot_product_attention(rotate(q, angle), k, v, seen, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config, fusion):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(config), Norm(config)
        if fusion:
            self.hidden_norm = Norm(config)
        self.self_attn, self.mlp = Attention(config, config["hidden_size"] * (1 + fusion)), MLP(config)

    def forward(self, x, start, angle, embeds=None):
        normed = self.input_layernorm(x if embeds is None else embeds)
        if embeds is not None:
            normed = torch.cat([normed, self.hidden_norm(x)], dim=-1)
        x = x + self.self_attn(normed, start, angle)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Rows of taps [B, W, 3H] and ids [W] to draft logits [B, W, VD]."""

    def __init__(self, folder: Path, dtype):
        super().__init__()
        self.config = config = json.loads((folder / "config.json").read_text())
        hidden = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.fc = nn.Linear(3 * config["target_hidden_size"], hidden, bias=False)
        self.midlayer = Layer(config, fusion=True)
        self.layers = nn.ModuleDict(
            {str(n): Layer(config, fusion=False) for n in range(1, config["num_hidden_layers"])}
        )
        self.norm, self.lm_head = Norm(config), nn.Linear(hidden, config["draft_vocab_size"], bias=False)
        self.mask_hidden = nn.Parameter(torch.empty(1, 1, 3 * config["target_hidden_size"]))
        weights = load_file(folder / "model.safetensors")
        self.d2t = weights.pop("d2t")
        weights.pop("t2d")
        self.load_state_dict(weights)
        self.to(dtype)
        self.turn = inverse_frequencies(config)

    def forward(self, ids, taps, start):
        angle = torch.arange(start, start + len(ids))[:, None] * self.turn
        x = self.midlayer(self.fc(taps), start, angle, self.embed_tokens(ids)[None])
        for layer in self.layers.values():
            x = layer(x, start, angle)
        return self.lm_head(self.norm(x))


class Speculator:
    """Target and drafter with one sequence under way; greedy, unless `choose` does otherwise."""

    @torch.no_grad()
    def __init__(self, target: Path, drafter: Path, k: int, precision: str):
        self.target = GptOssForCausalLM.from_pretrained(
            target, dtype=DTYPES[precision], attn_implementation="eager", local_files_only=True
        ).eval()
        self.drafter, self.k = Drafter(drafter, DTYPES[precision]), k
        self.taps = self.drafter.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        self.cache, self.length, self.fresh, self.fresh_taps, self.verified = DynamicCache(), 0, [], None, None

    def choose(self, what, logits):
        """Ids of logits [W, V]: of the `first` token, of a `draft`, or of a `verify` pass."""
        return logits.argmax(-1)

    def run_target(self, ids):
        """Logits and taps of rows behind the cache, which keeps no more than the committed ones."""
        if rejected := self.cache.get_seq_length() - self.length:
            self.cache.crop(-rejected)
        out = self.target(torch.tensor([ids]), past_key_values=self.cache, output_hidden_states=True)
        return out.logits, torch.cat([out.hidden_states[tap] for tap in self.taps], dim=-1)

    @torch.no_grad()
    def prefill(self, ids):
        self.cache, self.length = DynamicCache(), 0
        logits, taps = self.run_target(ids)
        self.drafter(torch.tensor(ids[1:]), taps[:, :-1], 0)
        self.length, self.fresh, self.fresh_taps = len(ids), self.choose("first", logits[0, -1:]).tolist(), taps[:, -1:]
        return self.fresh[0]

    @torch.no_grad()
    def draft(self):
        """What was emitted last is committed, then K - 1 masked rows; K drafts."""
        count, masked = len(self.fresh), self.k - 1
        ids = torch.tensor([*self.fresh, *[self.drafter.config["ptd_token_id"]] * masked])
        taps = torch.cat([self.fresh_taps, self.drafter.mask_hidden.expand(1, masked, -1)], dim=1)
        chosen = self.choose("draft", self.drafter(ids, taps, self.length - count)[0, count - 1 :])
        return (chosen + self.drafter.d2t[chosen]).tolist()

    @torch.no_grad()
    def verify(self, drafts):
        logits, self.verified = self.run_target([self.fresh[-1], *drafts])
        return self.choose("verify", logits[0]).tolist()

    def accept(self, drafts, tokens, left):
        agreed = next((n for n, draft in enumerate(drafts) if draft != tokens[n]), len(drafts))
        self.fresh = tokens[: agreed + 1][:left]
        ends = [n for n, token in enumerate(self.fresh) if token in self.target.generation_config.eos_token_id]
        self.fresh = self.fresh[: ends[0] + 1] if ends else self.fresh
        self.length, self.fresh_taps = self.length + len(self.fresh), self.verified[:, : len(self.fresh)]
        return self.fresh
