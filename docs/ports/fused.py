"""A port as ports are: one kernel per layer, caches written in place, a drafter pass of fixed width, a host loop.

gpt-oss (arXiv 2508.10925) with a P-EAGLE drafter (arXiv 2602.01469) in plain NumPy: products accumulate in float32 and
are rounded once to the dtype of the weights. Nothing here knows of parity; `fused_device.py` is the adapter.
Shapes: B = 1, W rows, H hidden, N heads in G groups, D per head, T cached rows, E experts, V vocabulary.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}


def wide(x):
    return x.astype(np.float32)


def matmul(x, w, bias=0):
    """x [..., I] times w [I, O]."""
    return (wide(x) @ wide(w) + np.asarray(bias, np.float32)).astype(x.dtype)


def normalised(x, eps):
    return wide(x) / np.sqrt((wide(x) ** 2).mean(-1, keepdims=True) + eps)


def softmax(x):
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


def frequencies(rope, size):
    """Radians per position [D/2] and the scale of cos and sin: YaRN by parts, or llama3."""
    pair = np.arange(0, size, 2)
    plain = rope["rope_theta"] ** (-pair / size)
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = ((original * plain / (2 * math.pi) - low) / (high - low)).clip(0, 1)
        return plain * kept + plain / factor * (1 - kept), 1.0
    first, last = (
        size * math.log(original / (2 * math.pi * rope[turns])) / (2 * math.log(rope["rope_theta"]))
        for turns in ("beta_fast", "beta_slow")
    )
    first, last = max(first, 0), min(last, size - 1)
    slowed = ((pair / 2 - first) / (last - first)).clip(0, 1)
    return plain * (1 - slowed) + plain / factor * slowed, 0.1 * math.log(factor) + 1


def rotate(x, positions, rope):
    """x [B, W, heads, D]; a pair is one number of each half."""
    turn, scale = rope
    angle = positions[:, None, None] * turn
    cos, sin = (np.float32(part(angle) * scale) for part in (np.cos, np.sin))
    one, other = np.split(wide(x), 2, axis=-1)
    return np.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1).astype(x.dtype)


def attention(q, k, v, cache_k, cache_v, positions, window=None, sinks=None):
    """q [B, W, N, D] over the cache up to the last of these rows, which are written first; [B, W, N * D]."""
    cache_k[:, positions], cache_v[:, positions] = k, v
    end, repeats = positions[-1] + 1, q.shape[2] // k.shape[2]
    keys, values = (np.repeat(wide(cache[:, :end]), repeats, axis=2) for cache in (cache_k, cache_v))
    scores = np.einsum("bwnd,btnd->bnwt", wide(q), keys) / math.sqrt(q.shape[-1])
    distance = positions[:, None] - np.arange(end)
    scores = np.where((distance >= 0) & (distance < (window or end)), scores, -np.inf)
    if sinks is not None:  # one more logit a head, which takes its share and adds no value
        column = np.broadcast_to(wide(sinks)[None, :, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], axis=-1)
    mixed = np.einsum("bnwt,btnd->bwnd", softmax(scores)[..., :end], values)
    return mixed.astype(q.dtype).reshape(*q.shape[:2], -1)


def heads(x, size):
    return x.reshape(*x.shape[:2], -1, size)


def experts(x, w, config):
    """x [B, W, H]: every expert over every row, those beyond the top ones with no weight."""
    scores = wide(matmul(x, w["mlp.router.weight"].T, w["mlp.router.bias"]))
    chosen = np.argsort(-scores, axis=-1, kind="stable")[..., : config["num_experts_per_tok"]]
    shares = np.zeros_like(scores)
    np.put_along_axis(shares, chosen, softmax(np.take_along_axis(scores, chosen, -1)), -1)
    both = np.einsum("bwh,eho->bweo", wide(x), wide(w["mlp.experts.gate_up_proj"]))
    both = wide((both + wide(w["mlp.experts.gate_up_proj_bias"])).astype(x.dtype))
    gate, up = both[..., 0::2].clip(max=7.0), both[..., 1::2].clip(-7.0, 7.0)
    inner = wide(((up + 1) * gate / (1 + np.exp(-1.702 * gate))).astype(x.dtype))
    down = np.einsum("bweo,eoh->bweh", inner, wide(w["mlp.experts.down_proj"]))
    down = wide((down + wide(w["mlp.experts.down_proj_bias"])).astype(x.dtype))
    return np.einsum("bwe,bweh->bwh", shares, down).astype(x.dtype)


# The kernels: what a host launches and sees.


def embed(ids, table):
    return table[ids][None]


def target_layer(x, w, cache_k, cache_v, positions, rope, window, config):
    """One layer of gpt-oss over x [B, W, H]."""
    size, eps = config["head_dim"], config["rms_norm_eps"]
    normed = (normalised(x, eps) * wide(w["input_layernorm.weight"])).astype(x.dtype)
    q, k, v = (
        heads(matmul(normed, w[f"self_attn.{one}_proj.weight"].T, w[f"self_attn.{one}_proj.bias"]), size)
        for one in "qkv"
    )
    q, k = rotate(q, positions, rope), rotate(k, positions, rope)
    mixed = attention(q, k, v, cache_k, cache_v, positions, window, w["self_attn.sinks"])
    x = x + matmul(mixed, w["self_attn.o_proj.weight"].T, w["self_attn.o_proj.bias"])
    normed = (normalised(x, eps) * wide(w["post_attention_layernorm.weight"])).astype(x.dtype)
    return x + experts(normed, w, config)


def target_head(x, w, eps):
    """Logits [B, W, V]."""
    return matmul((normalised(x, eps) * wide(w["model.norm.weight"])).astype(x.dtype), w["lm_head.weight"].T)


def fuse(taps, w):
    """Rows of taps [B, W, 3H] to the drafter's hidden [B, W, H]."""
    return matmul(taps, w["fc.weight"].T)


def drafter_layer(x, w, cache_k, cache_v, positions, rope, config, embeds=None):
    """One layer of the drafter over x [B, W, H]; the first one attends over the embeddings beside it."""
    size, eps = config["head_dim"], config["rms_norm_eps"]

    def normed(value, name):
        return w[f"{name}.weight"] * normalised(value, eps).astype(x.dtype)

    if embeds is None:
        both = normed(x, "input_layernorm")
    else:
        both = np.concatenate([normed(embeds, "input_layernorm"), normed(x, "hidden_norm")], axis=-1)
    q, k, v = (heads(matmul(both, w[f"self_attn.{one}_proj.weight"].T), size) for one in "qkv")
    q, k = rotate(q, positions, rope), rotate(k, positions, rope)
    x = x + matmul(attention(q, k, v, cache_k, cache_v, positions), w["self_attn.o_proj.weight"].T)
    both = normed(x, "post_attention_layernorm")
    gate, up = (wide(matmul(both, w[f"mlp.{one}_proj.weight"].T)) for one in ("gate", "up"))
    gate = wide((gate / (1 + np.exp(-gate))).astype(x.dtype))
    return x + matmul((gate * up).astype(x.dtype), w["mlp.down_proj.weight"].T)


def drafter_head(x, w, eps):
    """Logits [B, W, VD]."""
    return matmul(w["norm.weight"] * normalised(x, eps).astype(x.dtype), w["lm_head.weight"].T)


class Checkpoint:
    """config.json and weights of one model, and its caches [B, T, G, D]."""

    def __init__(self, folder: Path, dtype, layers, rope, slack):
        self.config = json.loads((folder / "config.json").read_text())
        read = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
        self.w = {name: x.astype(dtype) if x.dtype == ml_dtypes.bfloat16 else x for name, x in read.items()}
        self.layers = [
            {name.removeprefix(prefix): x for name, x in self.w.items() if name.startswith(prefix)}
            for prefix in map(layers, range(self.config["num_hidden_layers"]))
        ]
        self.rope = frequencies(
            {"rope_theta": self.config.get("rope_theta")} | self.config[rope], self.config["head_dim"]
        )
        rows = self.config["max_position_embeddings"] + slack
        shape = (1, rows, self.config["num_key_value_heads"], self.config["head_dim"])
        self.caches = [(np.zeros(shape, dtype), np.zeros(shape, dtype)) for _ in self.layers]


class Speculator:
    """Target and drafter with one sequence under way; greedy."""

    def __init__(self, target: Path, drafter: Path, k: int, precision: str):
        dtype = DTYPES[precision]
        self.target = Checkpoint(target, dtype, "model.layers.{}.".format, "rope_parameters", 2 * k)
        self.drafter = Checkpoint(
            drafter, dtype, lambda layer: f"layers.{layer}." if layer else "midlayer.", "rope_scaling", 2 * k
        )
        self.k, self.taps = k, self.drafter.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        self.eos = self.target.config["eos_token_id"]
        self.length, self.fresh, self.fresh_taps, self.verified = 0, [], None, None

    def prefill(self, ids, budget):
        """The first token; ValueError where the budget and K rows do not fit behind the prompt."""
        room = self.target.config["max_position_embeddings"]
        if len(ids) + budget + self.k > room:
            raise ValueError(
                f"{len(ids)} prompt tokens, {budget} new ones and {self.k} drafts do not fit {room} positions"
            )
        hidden, taps = self.run_target(np.array(ids), 0)
        logits = target_head(hidden[:, -1:], self.target.w, self.target.config["rms_norm_eps"])
        self.run_drafter(np.array(ids[1:]), taps[:, :-1], 0)
        self.length, self.fresh, self.fresh_taps = len(ids), [int(logits[0, 0].argmax())], taps[:, -1:]
        return self.fresh[0]

    def draft(self):
        """K drafts: what was emitted last is committed, then K - 1 masked rows; always 2K rows."""
        count, width = len(self.fresh), 2 * self.k
        ids = np.full(width, self.drafter.config["ptd_token_id"])
        ids[:count] = self.fresh
        masked = np.broadcast_to(self.drafter.w["mask_hidden"], (1, width - count, self.fresh_taps.shape[-1]))
        logits = self.run_drafter(ids, np.concatenate([self.fresh_taps, masked], axis=1), self.length - count)
        chosen = logits[0, count - 1 : count - 1 + self.k].argmax(-1)
        return chosen + self.drafter.w["d2t"][chosen]

    def verify(self, drafts):
        """The last token and the drafts through the target: a greedy id each."""
        hidden, self.verified = self.run_target(np.array([self.fresh[-1], *drafts]), self.length)
        logits = target_head(hidden, self.target.w, self.target.config["rms_norm_eps"])
        return logits[0].argmax(-1)

    def accept(self, drafts, tokens, left):
        """Emit what agrees and one token more; the rows of the others are overwritten by the next pass."""
        agreed = int(np.cumprod(np.equal(drafts, tokens[:-1])).sum())
        fresh = [int(token) for token in tokens[: agreed + 1]][:left]
        ends = [place for place, token in enumerate(fresh) if token in self.eos]
        self.fresh = fresh[: ends[0] + 1] if ends else fresh
        self.fresh_taps, self.length = self.verified[:, : len(self.fresh)], self.length + len(self.fresh)
        return self.fresh

    def generate(self, ids, budget):
        """Every token, in one loop."""
        emitted = [self.prefill(ids, budget)]
        while emitted[-1] not in self.eos and len(emitted) < budget:
            drafts = self.draft()
            emitted += self.accept(drafts, self.verify(drafts), budget - len(emitted))
        return emitted

    def run_target(self, ids, start):
        config, positions = self.target.config, start + np.arange(len(ids))
        x = embed(ids, self.target.w["model.embed_tokens.weight"])
        streams = [x]
        for w, cache, kind in zip(self.target.layers, self.target.caches, config["layer_types"], strict=True):
            window = config["sliding_window"] if kind == "sliding_attention" else None
            x = target_layer(x, w, *cache, positions, self.target.rope, window, config)
            streams.append(x)
        return x, np.concatenate([streams[tap] for tap in self.taps], axis=-1)

    def run_drafter(self, ids, taps, start):
        drafter, positions = self.drafter, start + np.arange(len(ids))
        embeds = embed(ids, drafter.w["embed_tokens.weight"])
        x = fuse(taps, drafter.w)
        for w, cache in zip(drafter.layers, drafter.caches, strict=True):
            x = drafter_layer(x, w, *cache, positions, drafter.rope, drafter.config, embeds)
            embeds = None
        return drafter_head(x, drafter.w, drafter.config["rms_norm_eps"])
