"""What this device holds of the two config.json files, by the names of `parity.seam.Description.constants`.

Read off the objects that the maths reads: a value that was changed, defaulted or misread shows as what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parity.device.config import FULL, SLIDING
from parity.device.drafter_config import FusedConfig, NGramConfig
from parity.device.rope_config import RopeConfig

if TYPE_CHECKING:
    from parity.device.drafter import Drafter
    from parity.device.ngram import NGram
    from parity.device.target import Target

_SCHEDULES = {
    "yarn": {"beta_fast": "fast", "beta_slow": "slow", "truncate": "truncate", "attention_factor": "magnitude"},
    "llama3": {"high_freq_factor": "fast", "low_freq_factor": "slow"},
    "default": {},
}
_TARGET = {
    "hidden_size": "hidden",
    "vocab_size": "vocab",
    "num_hidden_layers": "layers",
    "num_local_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "intermediate_size": "intermediate",
    "swiglu_limit": "limit",
    "swiglu_alpha": "alpha",
    "rms_norm_eps": "eps",
    "max_position_embeddings": "max_positions",
}
_DRAFTER = {
    "hidden_size": "hidden",
    "vocab_size": "vocab",
    "draft_vocab_size": "draft_vocab",
    "num_hidden_layers": "layers",
    "intermediate_size": "intermediate",
    "rms_norm_eps": "eps",
    "max_position_embeddings": "max_positions",
    "ptd_token_id": "placeholder",
    "dflash_config.mask_token_id": "mask",
    "eagle_aux_hidden_state_layer_ids": "taps",
    "norm_before_residual": "norm_before_residual",
    "norm_before_fc": "norm_before_fc",
    "fc_norm": "fc_norm",
    "norm_output": "norm_output",
    "num_parallel_positions": "max_drafts",
    "tie_word_embeddings": "tied",
}


def constants(target: Target, drafter: Drafter | NGram) -> dict[str, dict[str, Any]]:
    """Both sides; a key that the config leaves open and that changes nothing here is not said."""
    kinds = [FULL if window is None else SLIDING for window in target.windows]
    windows = sorted({window for window in target.windows if window is not None})
    outer = {key: getattr(target.config, name) for key, name in _TARGET.items()}
    outer |= {"layer_types": kinds, "eos_token_id": sorted(target.config.eos)}
    outer |= {"sliding_window": windows[0] if len(windows) == 1 else windows} if windows else {}
    if isinstance(drafter.config, NGramConfig):
        lengths = {"prompt_lookup_max": drafter.config.longest, "prompt_lookup_min": drafter.config.shortest}
        return {"target": outer | _attention(target), "drafter": lengths}
    inner = {key: value for key, name in _DRAFTER.items() if (value := getattr(drafter.config, name, None)) is not None}
    if isinstance(drafter.config, FusedConfig):
        inner["target_hidden_size"] = target.config.hidden
    elif not drafter.config.taps:
        del inner["eagle_aux_hidden_state_layer_ids"]
    return {"target": outer | _attention(target), "drafter": inner | _attention(drafter)}


def _attention(model: Target | Drafter) -> dict[str, Any]:
    """Heads, and the RoPE that the model turns by."""
    axes = model.config.attention
    heads = {"num_attention_heads": axes.heads, "num_key_value_heads": axes.kv_heads, "head_dim": axes.head_dim}
    return heads | {f"rope_parameters.{key}": value for key, value in _rope(model.rope).items()}


def _rope(rope: RopeConfig) -> dict[str, Any]:
    said = {"rope_type": rope.kind, "rope_theta": rope.theta}
    said |= {"factor": rope.factor, "original_max_position_embeddings": rope.original} if rope.kind != "default" else {}
    return said | {key: getattr(rope, name) for key, name in _SCHEDULES[rope.kind].items()}
