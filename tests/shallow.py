"""The tiny pair cut to two layers each: a third of a pass of it, for what plays a device a thousand times over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

LAYERS = 2
"""Of the target, one with the sliding window and one without, and of the drafter."""

POSITIONS = 192
"""Of either side's caches, over all of which a device attends: a prompt of these tests with all that gates append to it
takes fewer."""

TAPPED = 3
"""Of the target of other families: a drafter is handed the outputs of as many."""


def cut_pair(tiny: Path, folder: Path) -> dict[str, Path]:
    """Write the target and the P-EAGLE drafter of two layers to a folder; where they lie, by side."""
    kinds = json.loads((tiny / "target" / "config.json").read_text())["layer_types"][:LAYERS]
    taps, room = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, {"max_position_embeddings": POSITIONS}
    sides = {"target": folder / "target", "drafter": folder / "drafter"}
    _cut(tiny / "target", sides["target"], "model.layers.", layer_types=kinds, **room)
    _cut(tiny / "drafter", sides["drafter"], "layers.", eagle_config=taps, **room)
    return sides


def cut_tiny(tiny: Path, folder: Path) -> None:
    """Write all tiny checkpoints once more, the targets of three layers, beside their prompts."""
    for path in (path for path in tiny.iterdir() if path.is_dir()):
        if path.name.startswith("target"):
            _cut_target(path, folder / path.name)
        elif path.name == "prompts":
            (folder / "prompts").symlink_to(path)
        else:
            _tap(path, folder / path.name)


def cut_target(tiny: Path, folder: Path, drafter: str) -> dict[str, Path]:
    """Write the target of three layers, and another family's drafter that reads what these hand over."""
    sides = {"target": folder / "target", "drafter": folder / drafter}
    _cut_target(tiny / "target", sides["target"])
    _tap(tiny / drafter, sides["drafter"])
    return sides


def _cut_target(whole: Path, out: Path) -> None:
    kinds = json.loads((whole / "config.json").read_text())["layer_types"][:TAPPED]
    _cut(whole, out, "model.layers.", TAPPED, layer_types=kinds)


def _tap(whole: Path, out: Path) -> None:
    """A drafter that is handed the outputs of a target of three layers."""
    shutil.copytree(whole, out)
    file = out / "config.json"
    config = json.loads(file.read_text())
    if "eagle_config" in config:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    if "dflash_config" in config:
        config["dflash_config"]["target_layer_ids"], config["num_target_layers"] = [0, 1, 2], TAPPED
    file.write_text(json.dumps(config))


def _cut(whole: Path, out: Path, prefix: str, layers: int = LAYERS, **changes: object) -> None:
    """A checkpoint without the layers behind the first ones."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    config = json.loads((whole / "config.json").read_text()) | {"num_hidden_layers": layers} | changes
    (out / "config.json").write_text(json.dumps(config))
    tensors = {name: value for path in sorted(whole.glob("*.safetensors")) for name, value in load_file(path).items()}
    kept = {name: value for name, value in tensors.items() if _layer(name, prefix) < layers}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})


def _layer(name: str, prefix: str) -> int:
    return int(name.removeprefix(prefix).split(".")[0]) if name.startswith(prefix) else -1
