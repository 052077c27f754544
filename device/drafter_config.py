"""What a drafter's config.json says: P-EAGLE's, EAGLE-3's, DFlash's, a draft model's or prompt lookup's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from parity.device.checkpoint import Described
from parity.device.config import FULL, Attention, TargetConfig, open_config, read_attention
from parity.device.drafter_fields import PLACEHOLDERS, drafter_fields, named_placeholder
from parity.device.fields import Fields
from parity.partial_kv import PartialKV

NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
FUSED = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual"),
    *("eagle_config", "eagle_aux_hidden_state_layer_ids"),
)
DFLASH = "DFlashDraftModel"
BASE = 10000.0
"""Llama's own RoPE base: the first EAGLE-3 drafters leave out every word of RoPE, as Llama's first configs do."""


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Any drafter. `taps` are in_of numbers: `in_of[k]` is the residual stream entering target layer k.

    `max_drafts` is the number of drafts a round that it was made for, None where it does not say, `limit` its key.
    `partial` are the pages of its cache that a row attends to, None for all of it, and `kv_format` is what its caches
    keep, empty for the dtype of the pass: no config.json says so.
    """

    limit: ClassVar[str] = "num_parallel_positions"

    hidden: int
    vocab: int
    attention: Attention
    layers: int
    intermediate: int
    eps: float
    max_positions: int
    taps: tuple[int, ...] = ()
    max_drafts: int | None = None
    partial: PartialKV | None = None
    kv_format: str = ""

    @property
    def head(self) -> int:
        """Columns of its logits."""
        return self.vocab


@dataclass(frozen=True, kw_only=True)
class FusedConfig(DrafterConfig):
    """A drafter that is fed the target's taps, and drafts in a vocabulary of its own.

    `norm_before_fc` norms the taps as one row, `fc_norm` each of them; `norm_before_residual` sends the normed hidden
    round the attention; with `norm_output` a chain recycles what left the final norm.
    """

    draft_vocab: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    @property
    def head(self) -> int:
        """Columns of its logits."""
        return self.draft_vocab


@dataclass(frozen=True, kw_only=True)
class PEagleConfig(FusedConfig):
    """P-EAGLE; `placeholder` is the token of its masked rows."""

    placeholder: int


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(FusedConfig):
    """EAGLE-3: one layer, run K times."""


@dataclass(frozen=True, kw_only=True)
class DraftModelConfig(DrafterConfig):
    """A draft model: a Llama with the target's vocabulary. `tied`: its head is its embeddings."""

    tied: bool


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(DrafterConfig):
    """Block diffusion; `mask` is the token of the rows that draft. Embeddings and head are the target's."""

    limit = "block_size"

    mask: int


@dataclass(frozen=True, kw_only=True)
class NGramConfig:
    """Prompt lookup: lengths of the n-grams, in tokens. It has no layers and no table of positions."""

    longest: int
    shortest: int
    limit: ClassVar[str] = ""

    layers: int = 0
    taps: tuple[int, ...] = ()
    max_positions: int = 2**31
    max_drafts: int | None = None
    partial: PartialKV | None = None
    kv_format: str = ""


def drafter_config(checkpoint: Described, target: TargetConfig) -> DrafterConfig | NGramConfig:
    """Parse a drafter's config.json; `target` gives the default taps and the vocabulary it must share.

    Without a word of taps or of a draft vocabulary it is a draft model. One layer and no placeholder is EAGLE-3: it
    shares architecture names and most keys with P-EAGLE.
    """
    raw = Fields(checkpoint.folder / "config.json", checkpoint.config)
    if raw.has("prompt_lookup_max"):
        longest, shortest = raw.integer("prompt_lookup_max"), raw.integer("prompt_lookup_min")
        if shortest > longest:
            raise raw.refuse("prompt_lookup_min", f"is {shortest}, more than prompt_lookup_max = {longest}")
        return NGramConfig(longest=longest, shortest=shortest)
    alone, block = _is_draft_model(raw), _is_block(raw)
    fields = open_drafter(checkpoint)
    vocab = fields.integer("vocab_size")
    if vocab != target.vocab:
        raise fields.refuse("vocab_size", f"is {vocab}, the target's is {target.vocab}")
    common: dict[str, Any] = dict(
        hidden=fields.integer("hidden_size"),
        vocab=vocab,
        layers=fields.integer("num_hidden_layers"),
        intermediate=fields.integer("intermediate_size"),
        eps=fields.number("rms_norm_eps"),
        max_positions=fields.integer("max_position_embeddings"),
    )
    if alone:
        tied = fields.flag("tie_word_embeddings", False)
        return DraftModelConfig(**common, attention=_llama_attention(fields), tied=tied)
    if block:
        return _dflash(fields, common, target)
    fields.only("target_hidden_size", target.hidden, default=target.hidden)
    common |= dict(
        draft_vocab=fields.integer("draft_vocab_size", vocab),
        taps=_taps(fields, target.layers),
        **{name: _norm(fields, name) for name in NORMS},
    )
    if common["norm_before_fc"] and common["fc_norm"]:
        raise fields.refuse("fc_norm", "and 'norm_before_fc' exclude each other")
    if _is_chain(fields):
        return Eagle3Config(**common, attention=_llama_attention(fields))
    return _peagle(fields, common)


def open_drafter(checkpoint: Described) -> Fields:
    """A drafter's config.json in the hub's keys, whatever its format; unknown options are refused."""
    raw = Fields(checkpoint.folder / "config.json", checkpoint.config)
    if not _is_block(raw) and not _is_draft_model(raw):
        return drafter_fields(checkpoint)
    fields = open_config(checkpoint, "qwen3" if _is_block(raw) else "llama", tied=True)
    for option in ("attention_bias", "mlp_bias"):
        fields.only(option, False, default=False)
    return fields


def _is_block(fields: Fields) -> bool:
    return DFLASH in (fields.data.get("architectures") or ())


def _is_draft_model(fields: Fields) -> bool:
    """An ordinary Llama by name, without a key that only drafters on taps have: the first of those share the name."""
    names = fields.data.get("architectures")
    ordinary = isinstance(names, list) and "LlamaForCausalLM" in names
    return ordinary and not any(fields.has(key) for key in FUSED) and named_placeholder(fields) is None


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


def _dflash(fields: Fields, common: dict[str, Any], target: TargetConfig) -> DFlashConfig:
    fields.only("hidden_size", target.hidden)
    fields.only("num_target_layers", target.layers, default=target.layers)
    fields.only("use_sliding_window", False, default=False)
    kinds = fields.data.get("layer_types")
    if kinds is not None and kinds != [FULL] * common["layers"]:
        raise fields.refuse("layer_types", f"must name {FULL!r} for each of {common['layers']} layers")
    inner = fields.part("dflash_config")
    for key in inner.data.keys() - {"mask_token_id", "target_layer_ids"}:
        raise inner.refuse(key, "is unknown to this device")
    mask = inner.integer("mask_token_id", least=0)
    if mask >= common["vocab"]:
        raise inner.refuse("mask_token_id", f"is {mask}, outside a vocabulary of {common['vocab']}")
    left = inner.integers("target_layer_ids") or _spread(common["layers"], target.layers)
    if max(left) >= target.layers:
        raise inner.refuse("target_layer_ids", f"names layer {max(left)}, but the target has {target.layers} layers")
    taps = tuple(layer + 1 for layer in left)
    drafts = fields.integer("block_size", least=2) - 1
    return DFlashConfig(**common, attention=read_attention(fields), mask=mask, taps=taps, max_drafts=drafts)


def _spread(layers: int, target: int) -> tuple[int, ...]:
    """The target's layers that as many of the drafter's are fed with where the config names none."""
    if layers == 1:
        return (target // 2,)
    return tuple(round(1 + layer * (target - 4) / (layers - 1)) for layer in range(layers))


def _llama_attention(fields: Fields) -> Attention:
    """Heads and RoPE where a Llama's config may leave out the base."""
    if any(fields.has(name) for name in ROPE):
        return read_attention(fields)
    return read_attention(Fields(fields.path, fields.data | {"rope_theta": BASE}))


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
