"""What a drafter's config.json says: P-EAGLE's or EAGLE-3's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parity.device.checkpoint import Described
from parity.device.config import Attention, TargetConfig, read_attention
from parity.device.drafter_fields import PLACEHOLDERS, drafter_fields, named_placeholder
from parity.device.fields import Fields

NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
BASE = 10000.0
"""Llama's own RoPE base: the first EAGLE-3 drafters leave out every word of RoPE, as Llama's first configs do."""


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """A drafter on taps. `taps` are in_of numbers: `in_of[k]` is the residual stream entering target layer k.

    `max_drafts` is the number of drafts a round that it was made for, None where it does not say. `norm_before_fc`
    norms the taps as one row, `fc_norm` each of them; `norm_before_residual` sends the normed hidden round the
    attention; with `norm_output` a chain recycles what left the final norm.
    """

    hidden: int
    vocab: int
    draft_vocab: int
    attention: Attention
    layers: int
    intermediate: int
    eps: float
    max_positions: int
    taps: tuple[int, ...]
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    max_drafts: int | None = None


@dataclass(frozen=True, kw_only=True)
class PEagleConfig(DrafterConfig):
    """P-EAGLE; `placeholder` is the token of its masked rows."""

    placeholder: int


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(DrafterConfig):
    """EAGLE-3: one layer, run K times."""


def drafter_config(checkpoint: Described, target: TargetConfig) -> PEagleConfig | Eagle3Config:
    """Parse a drafter's config.json; `target` gives the default taps and the vocabulary it must share.

    One layer and no placeholder is EAGLE-3: the two share architecture names and most keys.
    """
    fields = drafter_fields(checkpoint)
    vocab = fields.integer("vocab_size")
    if vocab != target.vocab:
        raise fields.refuse("vocab_size", f"is {vocab}, the target's is {target.vocab}")
    fields.only("target_hidden_size", target.hidden, default=target.hidden)
    common: dict[str, Any] = dict(
        hidden=fields.integer("hidden_size"),
        vocab=vocab,
        draft_vocab=fields.integer("draft_vocab_size", vocab),
        layers=fields.integer("num_hidden_layers"),
        intermediate=fields.integer("intermediate_size"),
        eps=fields.number("rms_norm_eps"),
        max_positions=fields.integer("max_position_embeddings"),
        taps=_taps(fields, target.layers),
        **{name: _norm(fields, name) for name in NORMS},
    )
    if common["norm_before_fc"] and common["fc_norm"]:
        raise fields.refuse("fc_norm", "and 'norm_before_fc' exclude each other")
    return _eagle3(fields, common) if _is_chain(fields) else _peagle(fields, common)


def _is_chain(fields: Fields) -> bool:
    return fields.integer("num_hidden_layers") == 1 and named_placeholder(fields) is None


def _norm(fields: Fields, name: str) -> bool:
    """An option that adds or places a norm, here or under `eagle_config`."""
    inner = fields.part("eagle_config")
    if not inner.has(name):
        return fields.flag(name, False)
    if fields.flag(name, inner.data[name]) != inner.flag(name):
        raise fields.refuse(name, f"contradicts '{inner.prefix}{name}'")
    return inner.flag(name)


def _peagle(fields: Fields, common: dict[str, Any]) -> PEagleConfig:
    if common["norm_output"]:
        raise fields.refuse("norm_output", "is true, but P-EAGLE recycles no hidden")
    return PEagleConfig(
        **common,
        attention=read_attention(fields),
        placeholder=_placeholder(fields, common["vocab"]),
        max_drafts=fields.integer("num_parallel_positions") if fields.has("num_parallel_positions") else None,
    )


def _eagle3(fields: Fields, common: dict[str, Any]) -> Eagle3Config:
    if any(fields.has(name) for name in ROPE):
        return Eagle3Config(**common, attention=read_attention(fields))
    plain = Fields(fields.path, fields.data | {"rope_theta": BASE})
    return Eagle3Config(**common, attention=read_attention(plain))


def _placeholder(fields: Fields, vocab: int) -> int:
    where, name = named_placeholder(fields) or (fields, PLACEHOLDERS[-1])
    token = where.integer(name, least=0)
    if token >= vocab:
        raise where.refuse(name, f"is {token}, outside a vocabulary of {vocab}")
    return token


def _taps(fields: Fields, layers: int) -> tuple[int, ...]:
    name = "eagle_aux_hidden_state_layer_ids"
    inner = fields.part("eagle_config")
    where = inner if inner.has(name) else fields
    taps = where.integers(name) or (2, layers // 2, layers - 3)
    fields.only("num_aux_hidden_states", len(taps), default=len(taps))
    if not all(0 <= tap <= layers for tap in taps):
        raise where.refuse(name, f"taps in_of{list(taps)}, but the target has {layers} layers")
    return taps
