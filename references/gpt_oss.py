"""gpt-oss from its equations, in plain PyTorch. File order is the order of computation; every stage goes through a tap.

RMSNorm, grouped attention with YaRN rotation, a sliding window in every other layer and a learned sink per head, then
a mixture of experts: `layer` is a function of (weights, hidden, cache), so that a loop can run one layer at a time.
Shapes: S new rows, T cached and new ones, H hidden, N query heads in G groups, D per head, E experts, X of them chosen.
Everything is in the dtype of the weights but norms, which take at least float32; the rotation's angles are float64.

Sources: the gpt-oss model card (arXiv 2508.10925) and openai/gpt-oss `gpt_oss/torch/model.py` for the equations, Peng
et al. 2023 for YaRN, OCP Microscaling Formats 1.0 for MXFP4. Tensor names are the hub's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from parity.errors import UsageError
from parity.references.checkpoint import TARGET, check_names, read_config, read_tensors, shards
from parity.references.rope import read_rope

Tap = Callable[[str, torch.Tensor], torch.Tensor]
"""Takes a stage's name and value, returns the value to continue with."""
Weights = Mapping[str, torch.Tensor]
"""A layer's tensors by the hub's names behind `model.layers.{l}.`."""
Cache = tuple[torch.Tensor, torch.Tensor]
"""A layer's rotated keys and its values, [T, G, D] each; row p is position p."""


@dataclass(frozen=True)
class Config:
    """What the equations need of config.json, under its names; `rope` is its schedule as `read_rope` spells it."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    num_local_experts: int
    num_experts_per_tok: int
    vocab_size: int
    max_position_embeddings: int
    sliding_window: int
    layer_types: Sequence[str]
    rms_norm_eps: float
    swiglu_limit: float
    swiglu_alpha: float
    rope: Mapping[str, Any]
    mxfp4: bool

    @classmethod
    def read(cls, checkpoint: Path) -> Config:
        """Read config.json of a checkpoint folder.

        Raises:
            UsageError: a number is missing or none, or something is asked for that these equations do not have.
        """
        raw = read_config(checkpoint, TARGET)
        quantisation = raw.get("quantization_config") or {"quant_method": None}
        method = quantisation.get("quant_method") if isinstance(quantisation, dict) else quantisation
        raw = {"swiglu_alpha": 1.702} | raw | {"rope": read_rope(raw), "mxfp4": method == "mxfp4"}
        values: dict[str, Any] = {field.name: raw.get(field.name) for field in fields(cls)}
        fits = {name: value is not None for name, value in values.items()}
        for name in ("rms_norm_eps", "swiglu_limit", "swiglu_alpha"):
            fits[name] = isinstance(values[name], int | float) and 0 < values[name] < math.inf
        fits["layer_types"] = (
            isinstance(raw.get("layer_types"), list)
            and len(raw["layer_types"]) == raw.get("num_hidden_layers")
            and all(kind in ("sliding_attention", "full_attention") for kind in raw["layer_types"])
        )
        fits["rope_type"] = raw["rope"]["rope_type"] in ("yarn", "default")
        fits["quantization_config"] = isinstance(quantisation, dict) and method in (None, "mxfp4")
        fits["attention_bias"] = raw.get("attention_bias", True) is True
        fits["tie_word_embeddings"] = raw.get("tie_word_embeddings", False) is False
        if all(fits.values()):
            fits["num_key_value_heads"] = values["num_attention_heads"] % values["num_key_value_heads"] == 0
            fits["num_experts_per_tok"] = values["num_experts_per_tok"] <= values["num_local_experts"]
            fits["head_dim"] = values["head_dim"] % 2 == 0
        for name in (name for name, fit in fits.items() if not fit):
            raise UsageError(f"{checkpoint / 'config.json'}: {name} is missing, or not one that gpt-oss has")
        return cls(**values)


def embed(table: torch.Tensor, ids: torch.Tensor, tap: Tap) -> torch.Tensor:
    """Token ids [S] to the residual stream [S, H]."""
    return tap("target.embed", table[ids])


def as_it_is(part: str, rows: torch.Tensor) -> torch.Tensor:
    """What a cache in the model's own dtype makes of the rows that are written to it."""
    return rows


def layer(
    config: Config,
    number: int,
    weights: Weights,
    hidden: torch.Tensor,
    cache: Cache | None,
    tap: Tap,
    hold: Tap = as_it_is,
) -> tuple[torch.Tensor, Cache]:
    """Run one decoder layer over S new rows.

    Args:
        number: which layer; it names the stages and says whether there is a window.
        hidden: the residual stream entering the layer, [S, H].
        cache: the rows before these; None at the start of a sequence.
        hold: what the cache makes of the `k` and the `v` that are written to it.

    Returns:
        The residual stream leaving the layer [S, H], and the cache with these rows.
    """

    def tapped(part: str, value: torch.Tensor) -> torch.Tensor:
        return tap(f"target.layers.{number}.{part}", value)

    window = config.sliding_window if config.layer_types[number] == "sliding_attention" else None
    attn_in = tapped("attn_in", rms_norm(hidden, weights["input_layernorm.weight"], config.rms_norm_eps))
    attn_out, cache = attention(config, weights, attn_in, cache, window, tapped, hold)
    hidden = hidden + attn_out
    ffn_in = rms_norm(hidden, weights["post_attention_layernorm.weight"], config.rms_norm_eps)
    return tapped("out", hidden + mixture(config, weights, ffn_in, tapped)), cache


def complete(done: Mapping[str, torch.Tensor]) -> bool:
    """Whether a run can go on behind a layer of which these stages are known, by full stage name."""
    return {"k", "v", "out"} <= {stage.rpartition(".")[2] for stage in done}


def continued(
    done: Mapping[str, torch.Tensor], cache: Cache | None, tap: Tap, hold: Tap = as_it_is
) -> tuple[torch.Tensor, Cache]:
    """What `layer` returns where its stages are known: each is handed over, and nothing is computed.

    Args:
        done: what was handed over when the layer was computed, by full stage name, all that `complete` asks for.
    """
    back = {stage.rpartition(".")[2]: tap(stage, value) for stage, value in done.items()}
    return back["out"], extended(cache, hold("k", back["k"]), hold("v", back["v"]))


def extended(cache: Cache | None, k: torch.Tensor, v: torch.Tensor) -> Cache:
    """A cache with the rows that follow."""
    return (k, v) if cache is None else (torch.cat((cache[0], k)), torch.cat((cache[1], v)))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; wide until after the weight, then one cast."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def linear(weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
    """W x + b: [S, in] to [S, out]."""
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def attention(
    config: Config, weights: Weights, x: torch.Tensor, cache: Cache | None, window: int | None, tap: Tap, hold: Tap
) -> tuple[torch.Tensor, Cache]:
    """Grouped causal attention with sinks: normed rows [S, H] to [S, H], and the cache with these rows."""
    count, size = len(x), config.head_dim
    start = 0 if cache is None else len(cache[0])
    positions = torch.arange(start, start + count)
    cos, sin = rotation(config, positions, x.dtype)
    q = tap("q", rotate(linear(weights, "self_attn.q_proj", x).view(count, -1, size), cos, sin))
    k = tap("k", rotate(linear(weights, "self_attn.k_proj", x).view(count, -1, size), cos, sin))
    v = tap("v", linear(weights, "self_attn.v_proj", x).view(count, -1, size))
    k, v = extended(cache, hold("k", k), hold("v", v))
    mixed = attend(q, k, v, weights["self_attn.sinks"], allowed(positions, len(k), window))
    return tap("attn_out", linear(weights, "self_attn.o_proj", mixed.flatten(1))), (k, v)


def rotation(config: Config, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin [S, 1, D/2] of the angles position * frequency, both times YaRN's concentration."""
    frequencies, concentration = schedule(config.rope, config.head_dim)
    angles = positions[:, None, None] * frequencies
    return (angles.cos() * concentration).to(dtype), (angles.sin() * concentration).to(dtype)


def schedule(rope: Mapping[str, Any], size: int) -> tuple[torch.Tensor, float]:
    """Frequencies [D/2] in radians per position, float64, and the concentration.

    YaRN, by parts: pair i turns base^(-2i/D) a position. Pairs that turn often in the original context are kept, pairs
    that turn seldom are slowed by the factor, and between the two lies a ramp over i.
    """
    index = torch.arange(size // 2, dtype=torch.float64)
    base = float(rope["rope_theta"])
    plain = base ** (-2 * index / size)
    if rope["rope_type"] == "default":
        return plain, 1.0
    factor, original = float(rope["factor"]), float(rope["original_max_position_embeddings"])
    low, high = (
        size * math.log(original / (2 * math.pi * rope.get(name, turns))) / (2 * math.log(base))
        for name, turns in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    slowed = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    concentration = rope.get("attention_factor") or (0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
    return plain * (1 - slowed) + plain / factor * slowed, float(concentration)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn [S, heads, D] by cos and sin [S, 1, D/2]; a pair is one number of each half."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def allowed(positions: torch.Tensor, keys: int, window: int | None) -> torch.Tensor:
    """Which keys each query sees, bool [S, T]: its own and those before it; with a window the last `window` of them."""
    distance = positions[:, None] - torch.arange(keys)
    return (distance >= 0) & (distance < (keys if window is None else window))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Queries [S, N, D] over keys and values [T, G, D]: [S, N, D]. Heads n, n+1, … of a group share its keys.

    A head's sink is one more logit of its softmax, not scaled, that takes its share of the weight and adds no value.
    """
    (count, heads, size), groups = q.shape, k.shape[1]
    grouped = q.view(count, groups, heads // groups, size)
    logits = torch.einsum("sgnd,tgd->gnst", grouped, k) * size**-0.5
    logits = logits.masked_fill(~seen, -math.inf)
    sink = sinks.view(groups, -1, 1, 1).expand(*logits.shape[:3], 1)
    shares = torch.cat((logits, sink), dim=-1).softmax(-1)[..., :-1]
    return torch.einsum("gnst,tgd->sgnd", shares, v).reshape(count, heads, size)


def mixture(config: Config, weights: Weights, x: torch.Tensor, tap: Tap) -> torch.Tensor:
    """Normed rows [S, H] through the X experts of the highest scores, weighed by a softmax over those X: [S, H]."""
    scores = tap("router_logits", linear(weights, "mlp.router", x))
    chosen = tap("experts", scores.topk(config.num_experts_per_tok).indices)
    shares = scores.gather(1, chosen).softmax(-1)
    total = torch.zeros_like(x)
    for number in chosen.unique().tolist():
        rows, places = (chosen == number).nonzero(as_tuple=True)
        total.index_add_(0, rows, shares[rows, places, None] * expert(config, weights, number, x[rows]))
    return tap("ffn_out", total)


def expert(config: Config, weights: Weights, number: int, x: torch.Tensor) -> torch.Tensor:
    """One expert's SwiGLU over rows [n, H]; gate and up take turns on the axis of [H, 2I]."""
    both = x @ weights["mlp.experts.gate_up_proj"][number] + weights["mlp.experts.gate_up_proj_bias"][number]
    gate = both[:, 0::2].clamp(max=config.swiglu_limit)
    up = both[:, 1::2].clamp(-config.swiglu_limit, config.swiglu_limit)
    inner = (up + 1) * gate * torch.sigmoid(config.swiglu_alpha * gate)
    return inner @ weights["mlp.experts.down_proj"][number] + weights["mlp.experts.down_proj_bias"][number]


def head(config: Config, outer: Weights, hidden: torch.Tensor, tap: Tap) -> torch.Tensor:
    """The residual stream [S, H] after the last layer to logits [S, V]."""
    normed = tap("target.pre_head_hidden", rms_norm(hidden, outer["model.norm.weight"], config.rms_norm_eps))
    return F.linear(normed, outer["lm_head.weight"])


class Checkpoint:
    """A gpt-oss checkpoint on disk, bfloat16 or MXFP4, read a layer at a time into `dtype`.

    Raises:
        UsageError: config.json does not fit, or a tensor is missing, surplus or of the wrong shape.
    """

    def __init__(self, folder: Path, dtype: torch.dtype):
        self.config, self.dtype = Config.read(folder), dtype
        self.shards = shards(folder)
        names = [name for number in range(self.config.num_hidden_layers) for name in layer_shapes(self.config, number)]
        check_names(folder, self.shards, [*outer_shapes(self.config), *names])

    def outer(self) -> dict[str, torch.Tensor]:
        """Embedding, last norm and head, by their names."""
        return self._read(outer_shapes(self.config))

    def layer(self, number: int) -> dict[str, torch.Tensor]:
        """One layer's weights, MXFP4 decoded."""
        read = self._read(layer_shapes(self.config, number))
        weights = {name.removeprefix(f"model.layers.{number}."): tensor for name, tensor in read.items()}
        for name in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj") if self.config.mxfp4 else ():
            blocks, scales = weights.pop(f"{name}_blocks"), weights.pop(f"{name}_scales")
            weights[name] = decode_mxfp4(blocks, scales, self.dtype)
        return weights

    def _read(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
        """Bytes of MXFP4 stay as they are."""
        tensors = read_tensors(self.shards, shapes)
        return {name: held if held.dtype == torch.uint8 else held.to(self.dtype) for name, held in tensors.items()}


def decode_mxfp4(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 blocks [E, out, in/32, 16] and scales [E, out, in/32] to float32 or bfloat16 [E, in, out], exact in either.

    A block's 32 numbers share the scale 2^(s - 127). A byte holds two, the low half first: a sign, two bits of exponent
    and one of mantissa.
    """
    meanings = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    byte = torch.arange(256)
    pairs = torch.stack((meanings[byte & 15], meanings[byte >> 4]), dim=-1).to(dtype)
    values = F.embedding(blocks.int(), pairs).flatten(-2)
    values *= torch.ldexp(torch.ones(scales.shape), scales.int() - 127)[..., None].to(dtype)
    return values.flatten(-2).transpose(1, 2)


def outer_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors around the layers."""
    table = config.vocab_size, config.hidden_size
    return {"model.embed_tokens.weight": table, "model.norm.weight": table[1:], "lm_head.weight": table}


def layer_shapes(config: Config, number: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a layer's tensors."""
    hidden, inner, count = config.hidden_size, config.intermediate_size, config.num_local_experts
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"self_attn.sinks": (config.num_attention_heads,)}
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"{name}.weight"] = (hidden,)
    leaving = {"self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key, "mlp.router": count}
    for name, size in leaving.items():
        shapes |= {f"{name}.weight": (size, hidden), f"{name}.bias": (size,)}
    shapes |= {"self_attn.o_proj.weight": (hidden, query), "self_attn.o_proj.bias": (hidden,)}
    for name, size_in, size_out in (("gate_up_proj", hidden, 2 * inner), ("down_proj", inner, hidden)):
        name = f"mlp.experts.{name}"
        shapes[f"{name}_bias"] = (count, size_out)
        if config.mxfp4:
            shapes[f"{name}_blocks"] = (count, size_out, size_in // 32, 16)
            shapes[f"{name}_scales"] = (count, size_out, size_in // 32)
        else:
            shapes[name] = (count, size_in, size_out)
    return {f"model.layers.{number}.{name}": shape for name, shape in shapes.items()}
