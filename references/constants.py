"""What the references read of the two config.json files, by the names of `parity.seam.Description.constants`.

Taken from the loaded models: transformers fills what a config leaves open, and keeps some numbers in its own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parity.references.drafter_config import DrafterConfig, FamilyConfig
from parity.references.loop import SpeculativeLoop

SIZES = (
    *("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "num_local_experts", "num_experts_per_tok", "max_position_embeddings", "layer_types"),
)
KEYS = {
    "hidden_size": "hidden_size",
    "target_hidden_size": "target_hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "num_layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "eps": "rms_norm_eps",
    "vocab_size": "vocab_size",
    "draft_vocab_size": "draft_vocab_size",
    "max_positions": "max_position_embeddings",
    "placeholder_id": "ptd_token_id",
    "mask_id": "dflash_config.mask_token_id",
    "norm_before_residual": "norm_before_residual",
    "norm_before_fc": "norm_before_fc",
    "fc_norm": "fc_norm",
    "norm_output": "norm_output",
    "max_drafts": "num_parallel_positions",
    "tied": "tie_word_embeddings",
    "longest": "prompt_lookup_max",
    "shortest": "prompt_lookup_min",
}


def constants(loop: SpeculativeLoop[Any, Any]) -> dict[str, dict[str, Any]]:
    """Both sides of a loaded pair."""
    return {"target": _target(loop), "drafter": _drafter(loop)}


def _target(loop: SpeculativeLoop[Any, Any]) -> dict[str, Any]:
    config = loop.target.config
    numbers, rope, scale = loop.target.numbers()
    said: dict[str, Any] = {name: getattr(config, name) for name in SIZES}
    said |= {"sliding_window": config.sliding_window} if "sliding_attention" in (config.layer_types or ()) else {}
    said |= numbers
    return said | {"eos_token_id": sorted(loop.eos)} | _rope(rope, scale)


def _drafter(loop: SpeculativeLoop[Any, Any]) -> dict[str, Any]:
    config: FamilyConfig = loop.drafter.config
    said = {key: value for name, key in KEYS.items() if (value := getattr(config, name, None)) is not None}
    said |= {"eagle_aux_hidden_state_layer_ids": list(loop.tap_inputs)} if loop.tap_inputs else {}
    if not isinstance(config, DrafterConfig):
        return {key: said[key] for key in ("prompt_lookup_max", "prompt_lookup_min")}
    return said | _rope(
        config.rope, getattr(loop.drafter, "rope_scale", None)
    )  # the official EAGLE knows no schedule that scales


def _rope(rope: Mapping[str, Any], scale: float | None) -> dict[str, Any]:
    """A schedule with what it leaves open filled in, and what cos and sin are multiplied by."""
    said = {name: value for name, value in rope.items() if value is not None}
    if said["rope_type"] == "yarn":
        said = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True} | said | {"attention_factor": scale}
    return {f"rope_parameters.{name}": value for name, value in said.items()}
