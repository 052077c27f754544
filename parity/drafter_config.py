"""A drafter's config.json as one flat object, whatever format it is published in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parity.files import config_of

NESTED = "transformer_layer_config"
"""Where vllm-project/speculators keeps the layer; the drafter's own keys stand beside it."""


def drafter_config_of(folder: Path) -> dict[str, Any]:
    """A drafter's config.json; what it cannot mean is for devices and references to refuse.

    Raises:
        UsageError: it cannot be read, or is no JSON object.
    """
    return flat(config_of(folder))


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """The layer's keys and the drafter's together.

    NeMo Automodel's config is its target's: the number of layers there is the target's, unless it drafts in parallel.
    """
    if nested(config):
        return {**config[NESTED], **{name: value for name, value in config.items() if value is not None}}
    if "LlamaEagle3DraftModel" in (config.get("architectures") or ()) and not config.get("parallel_drafting"):
        return config | {"num_hidden_layers": 1}
    return config


def nested(config: dict[str, Any]) -> bool:
    """Whether the layer's keys stand in an object of their own."""
    return "speculators_model_type" in config and isinstance(config.get(NESTED), dict)
