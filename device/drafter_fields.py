"""The config.json of a drafter in the formats it comes in, as fields of one flat Llama config.

Formats: the hub's own; vllm-project/speculators (the layer nested in `transformer_layer_config`); NeMo Automodel (the
target's config with the drafter's keys on top). An option that this device lacks is refused by its name.
"""

from __future__ import annotations

from typing import Any

from parity.device.checkpoint import Described
from parity.device.config import FULL, open_config
from parity.device.fields import Fields

NESTED = "transformer_layer_config"
PARALLEL = {"eagle3": False, "peagle": True}
"""The speculators types that this device runs, and whether they draft in parallel."""

OUTSIDE = (
    "draft_vocab_size",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
)
"""What stands beside the nested layer."""

COPIED = "LlamaEagle3DraftModel"
"""NeMo Automodel's architecture."""

STACK = ("model_type", "num_hidden_layers", "layer_types", "sliding_window")
"""Fields that a copied config has from its target, whose stack of layers they describe."""

LACKING = {"attention_bias": False, "mlp_bias": False, "qkv_bias": False, "bias": False, "logit_scale": 1.0}

# The names that vLLM knows for the id of a masked row (v1/spec_decode/eagle.py); hub drafters use the last.
PLACEHOLDERS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")


def drafter_fields(checkpoint: Described) -> Fields:
    """The fields of a drafter, once what this device cannot do is refused."""
    fields = open_config(_flat(checkpoint), "llama")
    for option, allowed in LACKING.items():
        fields.only(option, allowed, default=allowed)
    for part in (fields, fields.part("eagle_config")):
        part.only("use_aux_hidden_state", True, default=True)
    kinds = fields.data.get("layer_types") or [FULL]
    if not isinstance(kinds, list) or any(kind != FULL for kind in kinds):
        raise fields.refuse("layer_types", f"knows only {FULL!r} in a drafter")
    return fields


def named_placeholder(fields: Fields) -> tuple[Fields, str] | None:
    """Where the id of a masked row stands."""
    every = [(fields.part("dflash_config"), "mask_token_id"), *((fields, name) for name in PLACEHOLDERS)]
    named = [pair for pair in every if pair[0].has(pair[1])]
    for where, name in named[1:]:
        if where.data[name] != named[0][0].data[named[0][1]]:
            raise where.refuse(name, f"contradicts '{named[0][0].prefix}{named[0][1]}'")
    return named[0] if named else None


def _flat(checkpoint: Described) -> Described:
    fields = Fields(checkpoint.folder / "config.json", checkpoint.config)
    if fields.has("speculators_model_type"):
        return checkpoint.described(_unnested(fields))
    if COPIED in (fields.data.get("architectures") or ()):
        return checkpoint.described(_own(fields))
    return checkpoint


def _unnested(fields: Fields) -> dict[str, Any]:
    """The layer's fields, and over them those beside it."""
    kind, inner = fields.data["speculators_model_type"], fields.part(NESTED)
    if kind not in list(PARALLEL):
        raise fields.refuse("speculators_model_type", f"is {kind!r}, this device runs {' and '.join(PARALLEL)}")
    if not inner.data:
        raise fields.refuse(NESTED, "is missing")
    inner.only("model_type", "llama")
    # The library fills in false, vLLM true: a config that leaves it out has no one meaning.
    for name in ("draft_vocab_size", "norm_before_residual", *(("mask_token_id",) if PARALLEL[kind] else ())):
        if not fields.has(name):
            raise fields.refuse(name, "is missing")
    said = {name: fields.data[name] for name in OUTSIDE if fields.has(name)}
    for name, value in said.items():
        if inner.has(name) and inner.data[name] != value:
            raise fields.refuse(name, f"contradicts '{inner.prefix}{name}'")
    flat = inner.data | said
    if not PARALLEL[kind] and (found := named_placeholder(Fields(fields.path, flat))):
        raise fields.refuse(found[1], f"is the token of masked rows, which {kind!r} does not have")
    return flat


def _own(fields: Fields) -> dict[str, Any]:
    """What is the drafter's in a copied config: one layer, and all that the config says of them if it is parallel."""
    parallel, placeholder = fields.flag("parallel_drafting", False), named_placeholder(fields)
    if parallel != (placeholder is not None):
        name = placeholder[1] if placeholder else "mask_token_id"
        raise fields.refuse(name, f"{'is missing' if parallel else 'is there'}, parallel_drafting is {parallel}")
    flat = {name: value for name, value in fields.data.items() if name not in STACK}
    return flat | {"model_type": "llama", "num_hidden_layers": fields.data["num_hidden_layers"] if parallel else 1}
