"""What fuzzing starts from: a small whole example of every format."""

from __future__ import annotations

import base64
import io
import json
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save

ROOT = Path(__file__).parents[2]


def _npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _npz() -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, a=np.eye(3), b=np.arange(5))
    return out.getvalue()


def _manifest() -> bytes:
    raw = json.loads((ROOT / "fixtures/vllm/p-eagle-k7-b1/manifest.json").read_bytes())
    kept = [row for row in raw["tensors"] if not row["key"].split("/")[2].startswith("target.layers")]
    return json.dumps(raw | {"tensors": kept}).encode()


def _results() -> bytes:
    outputs = {"logits": {"values": {"array": base64.b64encode(_npy(np.eye(2, dtype=np.float32))).decode()}}}
    return json.dumps({"lst": [["runner", [{"outputs": outputs}]]]}).encode()


@cache
def seeds() -> dict[str, tuple[bytes, ...]]:
    """By target."""
    policies = [path.read_bytes() for path in sorted((ROOT / "parity/policies").glob("*.toml"))]
    maps = [path.read_bytes() for path in sorted(ROOT.glob("fixtures/imports/*.toml"))]
    tensors = {"a": np.eye(3, dtype=np.float32), "b": np.ones(4, ml_dtypes.bfloat16), "c": np.empty((0, 2), np.int64)}
    lines = (
        b"inspect\0x",
        b"diff\0--golden\0x\0--stage\0logits",
        b"taps\0--layers\024",
        b"policy\0bfloat16",
        b"--help",
        b"scan-log\0file",
    )
    return {
        "manifest": (_manifest(),),
        "safetensors": (save(tensors),),
        "policy": tuple(policies),
        "name_map": tuple(maps),
        "matrix": ((ROOT / "fixtures/tiny/nightly.toml").read_bytes(),),
        "arrays": (_npy(np.arange(6.0).reshape(2, 3)), _npz()),
        "results": (_results(),),
        "log": (b"line\n\x1b[31mNo feasible kernel\n",),
        "arguments": lines,
    }
