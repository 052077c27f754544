"""The formats in which drafters are published, brought to one: the hub's flat config.json with its tensors' names.

vllm-project/speculators keeps the layer's numbers in `transformer_layer_config` and the drafter's beside it. NeMo
Automodel copies the target's config and adds the drafter's keys: whatever describes a stack of layers is the target's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.references.checkpoint import check_sizes, read_config

HUB = ("LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3LlamaForCausalLM")
"""What the hub's drafters call themselves; the first EAGLE-3 drafters carry Llama's own name."""

NEMO = "LlamaEagle3DraftModel"
SPECULATORS = {
    "eagle3": ("Eagle3Speculator", "Eagle3DraftModel"),
    "peagle": ("PEagleSpeculator", "PEagleDraftModel"),
}
"""Architectures by `speculators_model_type`."""

KNOWN = (*HUB, NEMO, *(name for names in SPECULATORS.values() for name in names))
"""Every architecture's name."""

PLACEHOLDERS = ("mask_token_id", "pard_token", "ptd_token_id")
"""Names of the masked rows' token."""

LAYER = "transformer_layer_config"
DRAFTER = {
    *("draft_vocab_size", "target_hidden_size", "eagle_aux_hidden_state_layer_ids", "mask_token_id"),
    *("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
}
"""What a speculators config says outside the layer."""

SINGLE = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "qkv_bias": False,
    "bias": False,
    "tie_word_embeddings": False,
    "logit_scale": 1.0,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
}
"""Options of a Llama layer and of its head that change the maths, each with the one value that the references have."""


def read_drafter(checkpoint: Path) -> dict[str, Any]:
    """A drafter's config.json as the hub writes it, whatever its format.

    Raises:
        UsageError: an unknown architecture or type, a key that is missing, or an option that is not known here.
    """
    path = checkpoint / "config.json"
    raw = read_config(checkpoint, *KNOWN)
    if "speculators_model_type" in raw:
        raw = _speculators(raw, path)
        check_sizes(raw, path)
    elif NEMO in raw["architectures"]:
        raw = _nemo(raw, path)
    elif not set(HUB) & set(raw["architectures"]):
        raise UsageError(f"{path}: {raw['architectures'][0]} without speculators_model_type is not known")
    for name, only in SINGLE.items():
        if raw.get(name, only) not in (only, None):
            raise UsageError(f"{path}: {name} is {str(raw[name])[:40]}; the references' drafters have {only} only")
    kinds = raw.get("layer_types") or []
    if not isinstance(kinds, list) or set(map(str, kinds)) - {"full_attention"}:
        raise UsageError(f"{path}: layer_types {str(kinds)[:40]}; the references' drafters have full_attention only")
    return raw


def placeholder(raw: dict[str, Any]) -> Any:
    """The token of masked rows, None where the config names none.

    Raises:
        UsageError: two names give two tokens: implementations differ in which they take.
    """
    named = {name: raw[name] for name in PLACEHOLDERS if raw.get(name) is not None}
    if len(set(map(str, named.values()))) > 1:
        raise UsageError(f"the drafter's config.json: {' and '.join(named)} contradict each other")
    return next(iter(named.values()), None)


def _speculators(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """The layer's keys and the drafter's in one object.

    `norm_before_residual` has to be said: the library and vLLM fill in different values where it is not.
    """
    kind, inner = raw["speculators_model_type"], raw.get(LAYER)
    if kind not in list(SPECULATORS):
        raise UsageError(f"{path}: speculators_model_type {kind!r} is not one of {', '.join(SPECULATORS)}")
    if not set(SPECULATORS[kind]) & set(raw["architectures"]):
        raise UsageError(f"{path}: architectures {raw['architectures']} do not fit speculators_model_type {kind!r}")
    if not isinstance(inner, dict):
        raise UsageError(f"{path}: {LAYER} is missing or no object")
    if inner.get("model_type") != "llama":
        raise UsageError(f"{path}: {LAYER}.model_type is {inner.get('model_type')!r}, llama is needed")
    own = {name: raw[name] for name in DRAFTER if raw.get(name) is not None}
    needed = ["draft_vocab_size", "norm_before_residual", *(["mask_token_id"] if kind == "peagle" else [])]
    for name in needed:
        if name not in own:
            raise UsageError(f"{path}: {name} is missing")
    for name, value in own.items():
        if inner.get(name, value) != value:
            raise UsageError(f"{path}: {name} and {LAYER}.{name} contradict each other")
    if kind == "eagle3" and placeholder(inner | own) is not None:
        raise UsageError(f"{path}: a placeholder token contradicts speculators_model_type 'eagle3'")
    return {**inner, **own, "architectures": [HUB[0]]}


def _nemo(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """One layer unless it drafts in parallel; the kinds of the target's layers are not the drafter's."""
    flat = {name: value for name, value in raw.items() if name not in ("layer_types", "sliding_window")}
    if raw.get("parallel_drafting"):
        if placeholder(raw) is None:
            raise UsageError(f"{path}: parallel_drafting needs mask_token_id")
        return flat
    if placeholder(raw) is not None:
        raise UsageError(f"{path}: a placeholder token without parallel_drafting")
    return flat | {"num_hidden_layers": 1}
