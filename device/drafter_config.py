"""What a P-EAGLE drafter's config.json says."""

from __future__ import annotations

from dataclasses import dataclass

from parity.device.checkpoint import Described
from parity.device.config import Attention, TargetConfig, open_config, read_attention
from parity.device.fields import Fields

# vLLM's precedence for the id of a masked row (v1/spec_decode/eagle.py); hub drafters use the last.
PLACEHOLDERS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
EAGLE31 = ("fc_norm", "norm_before_fc", "norm_output")


@dataclass(frozen=True)
class DrafterConfig:
    """P-EAGLE. `taps` are in_of numbers: `in_of[k]` is the residual stream entering target layer k.

    `max_drafts` is the number of parallel positions the drafter was made for, None where it does not say.
    """

    hidden: int
    vocab: int
    draft_vocab: int
    attention: Attention
    layers: int
    intermediate: int
    eps: float
    max_positions: int
    placeholder: int
    taps: tuple[int, ...]
    norm_before_residual: bool
    max_drafts: int | None


def drafter_config(checkpoint: Described, target: TargetConfig) -> DrafterConfig:
    """Parse a P-EAGLE config.json; `target` gives the default taps and the vocabulary it must share."""
    fields = open_config(checkpoint, "llama")
    for option in (*EAGLE31, "attention_bias", "mlp_bias"):
        fields.only(option, False, default=False)
    vocab = fields.integer("vocab_size")
    if vocab != target.vocab:
        raise fields.refuse("vocab_size", f"is {vocab}, the target's is {target.vocab}")
    fields.only("target_hidden_size", target.hidden, default=target.hidden)
    return DrafterConfig(
        hidden=fields.integer("hidden_size"),
        vocab=vocab,
        draft_vocab=fields.integer("draft_vocab_size", vocab),
        attention=read_attention(fields),
        layers=fields.integer("num_hidden_layers"),
        intermediate=fields.integer("intermediate_size"),
        eps=fields.number("rms_norm_eps"),
        max_positions=fields.integer("max_position_embeddings"),
        placeholder=_placeholder(fields, vocab),
        taps=_taps(fields, target.layers),
        norm_before_residual=fields.flag("norm_before_residual", False),
        max_drafts=fields.integer("num_parallel_positions") if fields.has("num_parallel_positions") else None,
    )


def _placeholder(fields: Fields, vocab: int) -> int:
    inner = fields.part("dflash_config")
    named = [(inner, "mask_token_id"), *((fields, name) for name in PLACEHOLDERS)]
    where, name = next((pair for pair in named if pair[0].has(pair[1])), (fields, PLACEHOLDERS[-1]))
    token = where.integer(name, least=0)
    if token >= vocab:
        raise where.refuse(name, f"is {token}, outside a vocabulary of {vocab}")
    return token


def _taps(fields: Fields, layers: int) -> tuple[int, ...]:
    name = "eagle_aux_hidden_state_layer_ids"
    inner = fields.part("eagle_config")
    where = inner if inner.has(name) else fields
    taps = where.integers(name) or (2, layers // 2, layers - 3)
    if not all(0 <= tap <= layers for tap in taps):
        raise where.refuse(name, f"taps in_of{list(taps)}, but the target has {layers} layers")
    return taps
