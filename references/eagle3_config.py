"""The drafter's config.json, as the EAGLE-3 reference reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.references.checkpoint import read_config
from parity.references.rope import read_rope

ARCHITECTURES = ("LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3LlamaForCausalLM")
"""What the hub's EAGLE-3 drafters call themselves; the first drafters carry Llama's own name."""

LLAMA_THETA = 10000.0
"""The base of a Llama config that says nothing of RoPE, as the first EAGLE-3 drafters do."""

UNKNOWN = ("fc_norm", "norm_before_fc", "norm_output")
"""EAGLE-3.1 options that change the maths and are not part of this reference."""


@dataclass(frozen=True)
class Eagle3Config:
    """What the forward needs of the drafter's config.json.

    `tap_inputs` are `in_of` layer numbers of the target; `max_drafts` bounds K: None, a chain has no longest one.
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
    norm_before_residual: bool
    tap_inputs: tuple[int, ...] | None
    max_drafts: int | None = None

    @classmethod
    def read(cls, checkpoint: str | Path) -> Eagle3Config:
        """Read `config.json` of a checkpoint folder."""
        return cls.from_dict(read_config(Path(checkpoint), *ARCHITECTURES))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Eagle3Config:
        """Map the hub's keys; a missing one is named.

        Raises:
            UsageError: a required key is missing, there is more than one layer, or an option is not known here.
        """
        for key in UNKNOWN:
            if raw.get(key):
                raise UsageError(f"the drafter's config.json sets {key}, which the EAGLE-3 reference does not have")
        try:
            heads = raw["num_attention_heads"]
            found = cls(
                hidden_size=raw["hidden_size"],
                target_hidden_size=raw.get("target_hidden_size", raw["hidden_size"]),
                num_heads=heads,
                num_kv_heads=raw["num_key_value_heads"],
                head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
                num_layers=raw["num_hidden_layers"],
                intermediate_size=raw["intermediate_size"],
                eps=raw["rms_norm_eps"],
                vocab_size=raw["vocab_size"],
                draft_vocab_size=raw["draft_vocab_size"],
                max_positions=raw["max_position_embeddings"],
                rope=_rope(raw),
                norm_before_residual=raw.get("norm_before_residual", False),
                tap_inputs=_tap_inputs(raw),
            )
        except KeyError as missing:
            raise UsageError(f"the drafter's config.json has no {missing.args[0]!r}") from None
        if found.num_layers != 1:
            raise UsageError(
                f"an EAGLE-3 drafter has one layer, num_hidden_layers of its config.json is {found.num_layers}"
            )
        return found


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The configured schedule; Llama's plain one where the config has no word of RoPE."""
    silent = all(raw.get(key) is None for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    return {"rope_type": "default", "rope_theta": LLAMA_THETA} if silent else read_rope(raw)


def _tap_inputs(raw: dict[str, Any]) -> tuple[int, ...] | None:
    """The configured `in_of` layers, wherever the config keeps them; an empty list is no choice."""
    key = "eagle_aux_hidden_state_layer_ids"
    found = (raw.get("eagle_config") or {}).get(key, raw.get(key))
    return tuple(found) if found else None
