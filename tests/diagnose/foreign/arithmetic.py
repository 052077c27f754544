"""Numbers: rounding, checkpoints, norms, and rotation as a product of complex numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}


class Precision:
    """Float32 arrays whose values are rounded to the declared dtype after every operation."""

    def __init__(self, name: str):
        self.dtype = DTYPES[name]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Round to the dtype, stay in float32."""
        return x.astype(self.dtype).astype(np.float32)

    def show(self, tap, stage: str, x: np.ndarray) -> np.ndarray:
        """Hand `x` over in the dtype and go on with the answer, in float32."""
        return np.asarray(tap(stage, x.astype(self.dtype))).astype(np.float32)


def read(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """config.json and every tensor: floats as float32, integers as they are."""
    tensors = {}
    for shard in sorted(Path(folder).glob("*.safetensors")):
        tensors |= load_file(shard)
    wide = {name: x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x for name, x in tensors.items()}
    return json.loads((Path(folder) / "config.json").read_text()), wide


def unit(x: np.ndarray, eps: float) -> np.ndarray:
    """Rows of root mean square 1."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps))


def yarn(config: dict, truncated: bool = False) -> tuple[np.ndarray, float]:
    """Angular speeds [D/2] and the length of the rotated pairs under gpt-oss' YaRN."""
    rope, half = config["rope_parameters"], config["head_dim"] // 2
    speed = rope["rope_theta"] ** (-np.arange(half) / half)

    def place(turns: float) -> float:
        context = rope["original_max_position_embeddings"]
        return half * math.log(context / (turns * 2 * math.pi)) / math.log(rope["rope_theta"])

    low, high = place(rope["beta_fast"]), place(rope["beta_slow"])
    if truncated:
        low, high = math.floor(low), math.ceil(high)
    slow = np.clip((np.arange(half) - max(low, 0)) / (min(high, 2 * half - 1) - max(low, 0)), 0, 1)
    return speed * (1 - slow) + speed / rope["factor"] * slow, 0.1 * math.log(rope["factor"]) + 1


def llama3(config: dict) -> tuple[np.ndarray, float]:
    """Angular speeds [D/2] under Llama 3's schedule; pairs keep their length."""
    rope, half = config["rope_scaling"], config["head_dim"] // 2
    speed = config["rope_theta"] ** (-np.arange(half) / half)
    turns = rope["original_max_position_embeddings"] * speed / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    fast = np.clip((turns - low) / (high - low), 0, 1)
    return speed * fast + speed / rope["factor"] * (1 - fast), 1.0


def turns(schedule: tuple[np.ndarray, float], positions: int) -> np.ndarray:
    """e^(i * position * speed), times the length: complex64 [P, D/2]."""
    speed, length = schedule
    return (length * np.exp(1j * np.outer(np.arange(positions), speed))).astype(np.complex64)


def rotate(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Rotate [S, *, D], whose halves are real and imaginary parts, by [S, D/2]."""
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * turn[:, None]
    return np.concatenate((turned.real, turned.imag), axis=-1).astype(np.float32)
