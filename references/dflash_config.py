"""A DFlash drafter's config.json, as the references read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parity.errors import UsageError
from parity.references.drafter_config import DrafterConfig
from parity.references.rope import read_rope

ARCHITECTURE = "DFlashDraftModel"
KNOWN = ("mask_token_id", "target_layer_ids")
"""Keys of `dflash_config`; any other may change the maths."""

ONLY: dict[str, Any] = {"attention_bias": False, "use_sliding_window": False, "hidden_act": "silu"}
"""Options of Qwen3 of which the reference has one value."""


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(DrafterConfig):
    """A block diffusion drafter's: `mask_id` is the token of the rows that draft.

    `target_layers` is how many the target has, None where the config does not say.
    """

    architectures = (ARCHITECTURE,)
    family = "dflash"
    limit = "block_size"

    mask_id: int
    target_layers: int | None

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> DFlashConfig:
        """As `DrafterConfig.from_dict`.

        Raises:
            UsageError: a required key is missing, a value is of no use, or an option is not known here.
        """
        for key, only in ONLY.items():
            if raw.get(key, only) != only:
                raise UsageError(f"the DFlash drafter's config.json sets {key} {raw[key]!r}; only {only!r} is known")
        kinds = raw.get("layer_types") or []
        if any(kind != "full_attention" for kind in kinds):
            raise UsageError("the DFlash drafter's config.json has layer_types other than full_attention")
        return super().from_dict(raw)

    @classmethod
    def _own(cls, raw: dict[str, Any]) -> dict[str, Any]:
        inner = raw["dflash_config"]
        if not isinstance(inner, dict):
            raise UsageError("the DFlash drafter's dflash_config is no object")
        for key in inner.keys() - set(KNOWN):
            raise UsageError(f"the DFlash drafter's dflash_config sets {key}, which the reference does not have")
        block, mask = raw["block_size"], inner["mask_token_id"]
        if type(block) is not int or block < 2:
            raise UsageError(f"the DFlash drafter's block_size {block!r} is no whole number of at least 2")
        if type(mask) is not int or not 0 <= mask < raw["vocab_size"]:
            raise UsageError(f"the DFlash drafter's mask_token_id {mask!r} is no token of {raw['vocab_size']}")
        return {
            "head_dim": raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            "rope": read_rope(raw),
            "mask_id": mask,
            "target_layers": raw.get("num_target_layers"),
            "tap_inputs": _tap_inputs(inner.get("target_layer_ids"), raw),
            "max_drafts": block - 1,
        }


def _tap_inputs(layers: Any, raw: dict[str, Any]) -> tuple[int, ...]:
    """`in_of` numbers of `target_layer_ids`, which count the layers that the streams leave.

    Without any they are spread evenly from layer 1 to the third last; of one, the middle one.
    """
    if layers is None:
        count, drafter = raw["num_target_layers"], raw["num_hidden_layers"]
        spread = [round(1 + place * (count - 4) / (drafter - 1)) for place in range(drafter)] if drafter > 1 else []
        layers = spread or [count // 2]
    if not isinstance(layers, list) or not layers or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise UsageError(f"the DFlash drafter's target_layer_ids {str(layers)[:40]} is no list of layers")
    return tuple(layer + 1 for layer in layers)


def check_layers(config: DFlashConfig, layers: int) -> None:
    """Compare what a config says of its target with the target's layers.

    Raises:
        UsageError: it is made for another number of layers, or taps one that is not there.
    """
    if config.target_layers not in (None, layers):
        raise UsageError(f"the DFlash drafter's num_target_layers is {config.target_layers}; the target has {layers}")
    last = max(config.tap_inputs or ()) - 1
    if last >= layers:
        raise UsageError(f"the DFlash drafter's target_layer_ids name layer {last}; the target has {layers}")
