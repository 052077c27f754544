"""What has to be an error: a schedule that cannot be known, a position outside the checkpoint's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from parity.errors import DeviceEnded, NotOffered
from parity.files import config_of
from parity.gates.positions.rotation import unit_heads
from parity.gates.positions.schedule import NEEDS, read_schedule
from parity.partial import scratch
from parity.seam import Rotary

Config = dict[str, Any]
STYLES = ("rope_parameters", "rope_scaling")


def restyled(config: Config, style: str) -> Config:
    """The same config with its RoPE under `rope_parameters`, or under `rope_scaling` and `rope_theta`."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {"rope_type": "default"})
    theta = rope.pop("rope_theta", config.get("rope_theta"))
    rest = {key: value for key, value in config.items() if key not in (*STYLES, "rope_theta")}
    if style == "rope_parameters":
        return rest | {style: rope | {"rope_theta": theta}}
    return rest | {style: rope, "rope_theta": theta}


def unknown(config: Config, style: str) -> Iterator[tuple[str, Config]]:
    """Configs in this style whose schedule cannot be known, each with what is wrong about it."""
    config = restyled(config, style)
    rope = config[style]
    kind = rope["rope_type"]
    yield "type 'nonsense'", config | {style: rope | {"rope_type": "nonsense"}}
    yield f"type '{kind}2'", config | {style: rope | {"rope_type": f"{kind}2"}}
    bare = {key: value for key, value in rope.items() if key != "rope_type"}
    yield "type 'nonsense' under its old name", config | {style: bare | {"type": "nonsense"}}
    if bare.keys() - {"rope_theta"}:
        yield "no type", config | {style: bare}
    for name in NEEDS[kind]:
        yield f"no {name}", config | {style: {key: value for key, value in rope.items() if key != name}}
    yield "no rope_theta", config | {style: {**rope, "rope_theta": None}, "rope_theta": None}
    other = next(one for one in STYLES if one != style)
    yield "two types in two spellings", config | {other: {"rope_type": "nonsense", "rope_theta": 1e4}}


def not_refused(rotate: Rotary, folder: Path, side: str) -> tuple[list[str], int]:
    """Every wrong config and position that `rotate` took, and every right config that it did not; how many were tried.

    Without the right ones a device that refuses everything would pass.
    """
    own = config_of(folder)
    _, count = read_schedule(folder)
    tried = [(f"{side}, {style}: {what}", wrong, 0, True) for style in STYLES for what, wrong in unknown(own, style)]
    for style in STYLES:
        tried.append((f"{side}, {style}: a good config", restyled(own, style), count - 1, False))
    tried += [(f"{side}: position {at}", own, at, True) for at in (count, 2 * count, -1)]
    with scratch("positions") as temporary:
        found = [what for what, one, at, refuse in tried if _raises(rotate, temporary, side, one, at) != refuse]
    return found, len(tried)


def _raises(rotate: Rotary, folder: Path, side: str, config: Config, position: int) -> bool:
    (folder / "config.json").write_text(json.dumps(config))
    x = unit_heads(np.random.default_rng(0), 2, 1, config["head_dim"])
    try:
        rotate(folder, side, x, np.array([0, position]))
    except (NotOffered, DeviceEnded):
        raise
    except Exception:
        return True
    return False
