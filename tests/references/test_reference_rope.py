"""How the references read RoPE: both spellings, and nothing filled in."""

from __future__ import annotations

import json

import pytest

from parity.errors import UsageError
from parity.references.drafter_config import PEagleConfig
from parity.references.hf_target import HFTarget
from parity.references.rope import read_rope
from parity.references.rotary import rotate

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}


def test_every_spelling_reads_the_same():
    whole = YARN | {"rope_theta": 5e4}
    old = {"type": "yarn", **{name: value for name, value in YARN.items() if name != "rope_type"}}
    assert read_rope({"rope_parameters": whole}) == whole
    assert read_rope({"rope_scaling": YARN, "rope_theta": 5e4}) == whole
    assert read_rope({"rope_scaling": old, "rope_theta": 5e4}) == whole
    assert read_rope({"rope_parameters": old, "rope_theta": 5e4}) == whole
    assert read_rope({"rope_parameters": whole, "rope_scaling": YARN, "rope_theta": 5e4}) == whole
    assert read_rope({"rope_theta": 1e4, "rope_scaling": None}) == {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ({"rope_parameters": YARN | {"rope_type": "longrope", "rope_theta": 1e4}}, "longrope"),
        ({"rope_parameters": {"factor": 8.0, "rope_theta": 1e4}}, "None"),
        ({"rope_parameters": YARN}, "rope_theta is missing"),
        ({}, "rope_theta is missing|rope_theta None"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4}}, "original_max_.* is missing"),
        ({"rope_parameters": YARN | {"mscale": 1.0, "rope_theta": 1e4}}, "mscale is unknown"),
        ({"rope_parameters": YARN | {"factor": 0, "rope_theta": 1e4}}, "factor 0"),
        ({"rope_parameters": YARN | {"rope_theta": 1e4}, "rope_theta": 2e4}, "contradict"),
        ({"rope_parameters": YARN | {"rope_theta": 1e4}, "rope_scaling": {"rope_type": "default"}}, "contradict"),
        ({"rope_scaling": "yarn", "rope_theta": 1e4}, "no object"),
    ],
)
def test_what_is_not_stated_is_not_filled_in(raw, why):
    with pytest.raises(UsageError, match=why):
        read_rope(raw)


def changed(source, folder, **changes):
    """A folder with another config.json and links to the rest."""
    folder.mkdir()
    for path in source.iterdir():
        if path.name != "config.json":
            (folder / path.name).symlink_to(path)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def test_the_whole_target_refuses_what_transformers_would_fill_in(tiny, tmp_path):
    import torch

    typeless, nonsense = {"factor": 8.0, "rope_theta": 5e4}, YARN | {"rope_type": "nonsense", "rope_theta": 5e4}
    for number, rope in enumerate([typeless, nonsense]):
        with pytest.raises(UsageError, match="rope_type"):
            HFTarget(changed(tiny / "target", tmp_path / str(number), rope_parameters=rope), torch.float32)


def test_the_whole_drafter_refuses_a_scaling_without_a_type(tiny, tmp_path):
    with pytest.raises(UsageError, match="rope_type None"):
        PEagleConfig.read(changed(tiny / "drafter", tmp_path / "drafter", rope_scaling={"factor": 8.0}))


@pytest.mark.parametrize("side", ["target", "drafter"])
def test_a_position_outside_is_refused(side, tiny):
    import numpy as np

    for position in (-1, 512):
        with pytest.raises(UsageError, match="outside 0 to 511"):
            rotate(tiny / side, side, np.zeros((1, 1, 32), np.float32), np.array([position]))
