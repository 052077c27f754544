"""A drafter's config.json in the hub's keys, as the references read it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from parity.errors import UsageError
from parity.families import Family
from parity.references.checkpoint import read_config
from parity.references.drafter_formats import placeholder, read_drafter
from parity.references.rope import read_rope

LLAMA_THETA = 10000.0
"""The base of a Llama config that says nothing of RoPE, as the first EAGLE-3 drafters do."""


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """What the loop needs to know of any drafter.

    `tap_inputs` are `in_of` layer numbers of the target, none for a drafter without taps and None for the default
    ones; `max_drafts` the K it was trained for, or None where there is no longest one or the config does not say.
    """

    family: ClassVar[Family]
    limit: ClassVar[str] = "num_parallel_positions"
    """The key that `max_drafts` comes from."""

    num_layers: int
    max_positions: int
    tap_inputs: tuple[int, ...] | None = ()
    max_drafts: int | None = None


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(FamilyConfig):
    """What the forward of any drafter with weights needs of its config.json."""

    architectures: ClassVar[tuple[str, ...]] = ()

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    eps: float
    vocab_size: int
    rope: dict[str, Any]

    @classmethod
    def read(cls, checkpoint: str | Path) -> Self:
        """Read `config.json` of a checkpoint folder."""
        return cls.from_dict(read_config(Path(checkpoint), *cls.architectures))

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Map the hub's keys; a missing one is named.

        Raises:
            UsageError: a required key is missing, or an option is not known here.
        """
        try:
            return cls(**_common(raw), **cls._own(raw))
        except KeyError as missing:
            raise UsageError(f"the drafter's config.json has no {missing.args[0]!r}") from None

    @classmethod
    def _own(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The fields that this kind of drafter reads in a way of its own."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FusedConfig(DrafterConfig):
    """Of a drafter that is fed the target's taps and drafts in a vocabulary of its own.

    What the norms do: `Drafter.fuse` and `Eagle3.recycled`.
    """

    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    @classmethod
    def read(cls, checkpoint: str | Path) -> Self:
        """Read `config.json` of a checkpoint folder, in any format of `parity.references.drafter_formats`."""
        return cls.from_dict(read_drafter(Path(checkpoint)))


@dataclass(frozen=True, kw_only=True)
class PEagleConfig(FusedConfig):
    """A P-EAGLE drafter's: `placeholder_id` is the token of masked rows."""

    family = "p-eagle"

    placeholder_id: int

    @classmethod
    def _own(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("norm_output"):
            raise UsageError("the drafter's config.json sets norm_output, but P-EAGLE recycles no hidden")
        return {
            **_fused(raw),
            "head_dim": raw["head_dim"],
            "rope": read_rope(raw),
            "placeholder_id": raw["ptd_token_id"] if placeholder(raw) is None else placeholder(raw),
            "tap_inputs": _tap_inputs(raw) or None,
            "max_drafts": raw.get("num_parallel_positions"),
        }


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(FusedConfig):
    """An EAGLE-3 drafter's: one layer, run K times; an empty list of taps is no choice."""

    family = "eagle-3"

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """As `DrafterConfig.from_dict`.

        Raises:
            UsageError: a required key is missing, there is more than one layer, or an option is not known here.
        """
        config = super().from_dict(raw)
        if config.num_layers != 1:
            raise UsageError(
                f"an EAGLE-3 drafter has one layer, num_hidden_layers of its config.json is {config.num_layers}"
            )
        return config

    @classmethod
    def _own(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return {**_fused(raw), **_llama(raw), "tap_inputs": _tap_inputs(raw) or None}


@dataclass(frozen=True, kw_only=True)
class DraftModelConfig(DrafterConfig):
    """An ordinary Llama's; `tied`: its head is its embeddings."""

    architectures = ("LlamaForCausalLM",)
    family = "draft-model"

    tied: bool

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """As `DrafterConfig.from_dict`.

        Raises:
            UsageError: a required key is missing, or an option is not known here.
        """
        for key in ("attention_bias", "mlp_bias"):
            if raw.get(key):
                raise UsageError(f"the draft model's config.json sets {key}, which the reference does not have")
        if raw.get("hidden_act", "silu") != "silu":
            raise UsageError(f"the draft model's hidden_act is {raw['hidden_act']!r}; the reference has silu only")
        return super().from_dict(raw)

    @classmethod
    def _own(cls, raw: dict[str, Any]) -> dict[str, Any]:
        return {**_llama(raw), "tied": bool(raw.get("tie_word_embeddings", False))}


def _common(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields that every drafter reads alike.

    Raises:
        KeyError: one is missing.
    """
    return {
        "hidden_size": raw["hidden_size"],
        "num_heads": raw["num_attention_heads"],
        "num_kv_heads": raw["num_key_value_heads"],
        "num_layers": raw["num_hidden_layers"],
        "intermediate_size": raw["intermediate_size"],
        "eps": raw["rms_norm_eps"],
        "vocab_size": raw["vocab_size"],
        "max_positions": raw["max_position_embeddings"],
    }


def _fused(raw: dict[str, Any]) -> dict[str, Any]:
    """The fields of every drafter on taps.

    Raises:
        KeyError: one is missing.
        UsageError: an option is not known here.
    """
    return {
        "target_hidden_size": raw.get("target_hidden_size", raw["hidden_size"]),
        "draft_vocab_size": raw["draft_vocab_size"],
        **_norms(raw),
    }


def _llama(raw: dict[str, Any]) -> dict[str, Any]:
    """Head dim and RoPE where a Llama's config may leave them out."""
    silent = all(raw.get(key) is None for key in ("rope_theta", "rope_scaling", "rope_parameters"))
    return {
        "head_dim": raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        "rope": {"rope_type": "default", "rope_theta": LLAMA_THETA} if silent else read_rope(raw),
    }


def _norms(raw: dict[str, Any]) -> dict[str, Any]:
    """The options that place or add a norm; `eagle_config` may hold them as well.

    Raises:
        UsageError: one is neither true nor false, or two exclude each other.
    """
    found: dict[str, Any] = {}
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        said = {part.get(name) for part in (raw, raw.get("eagle_config") or {})} - {None}
        if len(said) > 1 or not all(isinstance(one, bool) for one in said):
            shown = " and ".join(sorted(map(str, said)))
            raise UsageError(f"the drafter's config.json: {name} is {shown[:40]}, it should be true or false")
        found[name] = bool(said and said.pop())
    if found["norm_before_fc"] and found["fc_norm"]:
        raise UsageError("the drafter's config.json sets norm_before_fc and fc_norm, which exclude each other")
    return found


def _tap_inputs(raw: dict[str, Any]) -> tuple[int, ...] | None:
    """The configured `in_of` layers, wherever the config keeps them.

    Raises:
        UsageError: the drafter reads no taps, or another number of them than it says.
    """
    key, inner = "eagle_aux_hidden_state_layer_ids", raw.get("eagle_config") or {}
    if inner.get("use_aux_hidden_state") is False or raw.get("use_aux_hidden_state") is False:
        raise UsageError("the drafter's config.json sets use_aux_hidden_state to false: a drafter without taps")
    layers = inner.get(key, raw.get(key))
    count = raw.get("num_aux_hidden_states")
    if count is not None and count != len(layers or (0, 0, 0)):
        raise UsageError(f"the drafter's config.json: num_aux_hidden_states is {count}, {key} is {layers}")
    return None if layers is None else tuple(layers)
