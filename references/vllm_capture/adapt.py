"""What vLLM reads otherwise than the hub's drafters are written: refused, or changed in a copy and said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file

from parity.errors import UsageError

PLACEHOLDERS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""The keys that vLLM takes the placeholder from, the first one present winning (after dflash_config's own)."""


def read_config(checkpoint: Path) -> dict[str, Any]:
    """Read config.json.

    Raises:
        UsageError: there is no readable one.
    """
    path = checkpoint / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        return config
    except (OSError, ValueError) as error:
        raise UsageError(f"{checkpoint} is no checkpoint: {path} cannot be read ({error})") from None


def check_target(target: Path) -> None:
    """Refuse what vLLM's CPU build cannot run.

    Raises:
        UsageError: MXFP4 experts, or heads narrower than 32.
    """
    config = read_config(target)
    if "quantization_config" in config:
        raise UsageError(f"{target} has quantised experts, which vLLM does not run on a CPU: name a dequantised copy")
    if config["head_dim"] < 32:
        raise UsageError(
            f"{target}: vLLM's attention on a CPU needs heads of at least 32, head_dim is {config['head_dim']}"
        )


def parallel(drafter: Path) -> bool:
    """Whether a drafter drafts in one pass: it names a placeholder. vLLM has to be told."""
    return "ptd_token_id" in read_config(drafter)


def adapted(drafter: Path, target: Path, folder: Path) -> tuple[Path, str]:
    """The drafter as vLLM can read it, and what was changed in words; the checkpoint itself where nothing was.

    Args:
        folder: where a changed copy goes; weights that stay are links.

    Raises:
        UsageError: taps that vLLM would reorder, or a vocabulary map that it would not apply.
    """
    config = read_config(drafter)
    _check_taps(drafter, config)
    notes = []
    others = [key for key in ("dflash_config", *PLACEHOLDERS[:-1]) if key in config]
    if others:
        config = {key: value for key, value in config.items() if key not in others}
        notes.append(f"config without {', '.join(others)}: vLLM would take the placeholder from there")
    whole = config.get("draft_vocab_size") == read_config(target)["vocab_size"]
    files = sorted(drafter.glob("*.safetensors"))
    if whole and any("d2t" in _names(path) for path in files):
        notes.append("d2t left out: vLLM has no place for it where the vocabularies are equal")
    if not notes:
        return drafter, "none"
    copy = folder / "drafter"
    copy.mkdir()
    (copy / "config.json").write_text(json.dumps(config))
    for path in files:
        _weights(path, copy / path.name, leave="d2t" if whole else "")
    return copy, "; ".join(notes)


def _check_taps(drafter: Path, config: dict[str, Any]) -> None:
    """vLLM sorts the tap layers and drops double ones: another order is another drafter."""
    key = "eagle_aux_hidden_state_layer_ids"
    taps = config.get(key) or config.get("eagle_config", {}).get(key) or []
    if list(taps) != sorted(set(taps)):
        raise UsageError(f"{drafter}: vLLM sorts the taps {list(taps)}, it cannot run this drafter as it is meant")


def _names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def _weights(path: Path, copy: Path, leave: str) -> None:
    """A link to the weights; a copy without one tensor where they hold it."""
    if leave not in _names(path):
        copy.symlink_to(path.resolve())
        return
    with safe_open(path, framework="pt") as file:
        if file.get_tensor(leave).any():
            raise UsageError(f"{path}: d2t is not zero though the vocabularies are equal; vLLM would not apply it")
    save_file({name: value for name, value in load_file(path).items() if name != leave}, copy)
