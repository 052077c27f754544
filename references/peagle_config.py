"""The drafter's config.json, as the P-EAGLE reference reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.references.checkpoint import read_config
from parity.references.rope import read_rope


@dataclass(frozen=True)
class PEagleConfig:
    """What the forward needs of the drafter's config.json.

    `tap_inputs` are `in_of` layer numbers of the target; `max_drafts` the K it was trained for, or
    None where the config does not say.
    """

    hidden_size: int
    target_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    intermediate_size: int
    eps: float
    vocab_size: int
    draft_vocab_size: int
    max_positions: int
    rope: dict[str, Any]
    placeholder_id: int
    norm_before_residual: bool
    tap_inputs: tuple[int, ...] | None
    max_drafts: int | None

    @classmethod
    def read(cls, checkpoint: str | Path) -> PEagleConfig:
        """Read `config.json` of a checkpoint folder."""
        return cls.from_dict(read_config(Path(checkpoint), "LlamaForCausalLMEagle3"))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> PEagleConfig:
        """Map the hub's keys; a missing one is named.

        Raises:
            UsageError: a required key is missing.
        """
        try:
            return cls(
                hidden_size=raw["hidden_size"],
                target_hidden_size=raw.get("target_hidden_size", raw["hidden_size"]),
                num_heads=raw["num_attention_heads"],
                num_kv_heads=raw["num_key_value_heads"],
                head_dim=raw["head_dim"],
                num_layers=raw["num_hidden_layers"],
                intermediate_size=raw["intermediate_size"],
                eps=raw["rms_norm_eps"],
                vocab_size=raw["vocab_size"],
                draft_vocab_size=raw["draft_vocab_size"],
                max_positions=raw["max_position_embeddings"],
                rope=read_rope(raw),
                placeholder_id=raw["ptd_token_id"],
                norm_before_residual=raw.get("norm_before_residual", False),
                tap_inputs=_tap_inputs(raw),
                max_drafts=raw.get("num_parallel_positions"),
            )
        except KeyError as missing:
            raise UsageError(f"the drafter's config.json has no {missing.args[0]!r}") from None


def _tap_inputs(raw: dict[str, Any]) -> tuple[int, ...] | None:
    """The configured `in_of` layers, wherever the config keeps them."""
    key = "eagle_aux_hidden_state_layer_ids"
    found = raw.get("eagle_config", {}).get(key, raw.get(key))
    return tuple(found) if found is not None else None
