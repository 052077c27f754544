"""What the target's config.json says, as numbers that the kernels need; nothing is assumed silently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parity.device.checkpoint import Described, read_json
from parity.device.fields import Fields
from parity.device.rope_config import RopeConfig, parse_rope

SLIDING, FULL = "sliding_attention", "full_attention"
MOE = ("masked", "gathered")


@dataclass(frozen=True)
class Attention:
    """Axes and RoPE of one model's attention: N heads of D, G kv heads."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: RopeConfig


@dataclass(frozen=True)
class TargetConfig:
    """gpt-oss. `windows` has one entry a layer, None for full attention; `eos` may be empty.

    `moe` is the device's own choice, one of `MOE`: how the experts are formulated. `kv_format` is what its caches keep,
    empty for the dtype of the pass: no config.json says so.
    """

    hidden: int
    vocab: int
    attention: Attention
    windows: tuple[int | None, ...]
    experts: int
    experts_per_token: int
    intermediate: int
    limit: float
    alpha: float
    eps: float
    max_positions: int
    eos: tuple[int, ...]
    moe: str = "masked"
    kv_format: str = ""

    @property
    def layers(self) -> int:
        """L."""
        return len(self.windows)


def target_config(checkpoint: Described) -> TargetConfig:
    """Parse a gpt-oss config.json (and generation_config.json for the end tokens)."""
    fields = open_config(checkpoint, "gpt_oss")
    fields.only("attention_bias", True, default=True)
    experts = fields.integer("num_local_experts" if fields.has("num_local_experts") else "num_experts")
    per_token = "num_experts_per_tok" if fields.has("num_experts_per_tok") else "experts_per_token"
    chosen = fields.integer(per_token)
    if chosen > experts:
        raise fields.refuse(per_token, f"is {chosen}, but there are {experts} experts")
    return TargetConfig(
        hidden=fields.integer("hidden_size"),
        vocab=fields.integer("vocab_size"),
        attention=read_attention(fields),
        windows=_windows(fields),
        experts=experts,
        experts_per_token=chosen,
        intermediate=fields.integer("intermediate_size"),
        # Both are constants of the architecture; transformers writes neither.
        limit=fields.number("swiglu_limit", 7.0),
        alpha=fields.number("swiglu_alpha", 1.702),
        eps=fields.number("rms_norm_eps"),
        max_positions=fields.integer("max_position_embeddings"),
        eos=_end_tokens(checkpoint.folder, fields),
    )


def open_config(checkpoint: Described, model_type: str, tied: bool = False) -> Fields:
    """The fields of a config.json of this model type, once what this device cannot do is refused.

    Args:
        tied: the head may be the embeddings.
    """
    fields = Fields(checkpoint.folder / "config.json", checkpoint.config)
    fields.only("model_type", model_type)
    fields.only("hidden_act", "silu", default="silu")
    if not tied:
        fields.only("tie_word_embeddings", False, default=False)
    fields.part("quantization_config").only("quant_method", "mxfp4", default="mxfp4")
    return fields


def read_attention(fields: Fields) -> Attention:
    """Heads, head dim and RoPE."""
    heads, kv_heads = fields.integer("num_attention_heads"), fields.integer("num_key_value_heads")
    if heads % kv_heads:
        raise fields.refuse("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} heads")
    head_dim = fields.integer("head_dim", fields.integer("hidden_size") // heads)
    if head_dim % 2:
        raise fields.refuse("head_dim", f"is {head_dim}; the rotation needs an even number")
    return Attention(heads, kv_heads, head_dim, parse_rope(fields))


def _windows(fields: Fields) -> tuple[int | None, ...]:
    layers = fields.integer("num_hidden_layers")
    kinds = fields.data.get("layer_types") or [(SLIDING, FULL)[layer % 2] for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.refuse("layer_types", f"must name {layers} layers")
    if not set(kinds) <= {SLIDING, FULL}:
        raise fields.refuse("layer_types", f"knows only {SLIDING!r} and {FULL!r}")
    window = fields.integer("sliding_window") if SLIDING in kinds else None
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _end_tokens(folder: Path, fields: Fields) -> tuple[int, ...]:
    path = folder / "generation_config.json"
    if path.exists():
        generation = Fields(path, read_json(path))
        if generation.has("eos_token_id"):
            return generation.integers("eos_token_id")
    return fields.integers("eos_token_id")
