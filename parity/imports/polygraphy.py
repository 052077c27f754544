"""Polygraphy run results: JSON files with base64 arrays.

Format: NVIDIA/TensorRT, tools/Polygraphy, polygraphy/comparator/struct.py (`RunResults`, `IterationResult`) and
polygraphy/json/serde.py, as of 0.53.6: `{"lst": [[runner, [{"outputs": {name: {"values": array}}}]]]}`, where an
array is `{"array": base64 of an .npy}` or `{"tensor": base64 of a torch file}`, each marked by `polygraphy_class`.
Several files are one run, its iterations in the order of the files. The iteration is the step.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from parity import limits
from parity.errors import UsageError
from parity.imports.arrays import members, of_kind, read_json, tensor
from parity.imports.captured import Captured, TorchLoad


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every output of every iteration.

    Raises:
        UsageError: a file is no run result, or holds several runners.
    """
    step = 0
    for path in (file for root in paths for file in _files(root)):
        for outputs in _iterations(path):
            for name, value in outputs.items():
                yield Captured(name, str(path), partial(_array, value, f"{path} {name}", torch_load), step=step)
            step += 1


def _iterations(path: Path) -> list[dict[str, Any]]:
    """The outputs of one runner, by iteration."""
    try:
        runners = read_json(path, limits.RESULT_BYTES)["lst"]
        if len(runners) > 1:
            names = ", ".join(str(name) for name, _ in runners)
            raise UsageError(f"{path} holds {len(runners)} runners ({names}); save the results of one runner alone")
        outputs = [iteration["outputs"] for _, iterations in runners for iteration in iterations]
        return [dict(one.items()) for one in outputs]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{path} is no file of Polygraphy's RunResults") from None


def _files(root: Path) -> list[Path]:
    """The results in a folder, run10.json behind run2.json; or the file itself, whatever it is called."""
    return sorted(of_kind(root, [".json"]), key=_numbers) if root.is_dir() else [root]


def _numbers(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _array(value: Any, name: str, torch_load: TorchLoad) -> NDArray[Any]:
    """Decode one output."""
    value = value.get("values", value) if isinstance(value, dict) else {}
    text = value.get("array", value.get("tensor"))
    if not isinstance(text, str):
        raise UsageError(f"{name} is no array in the form of Polygraphy 0.40 or later")
    try:
        held = BytesIO(base64.b64decode(text.encode(), validate=True))
    except (binascii.Error, UnicodeEncodeError):
        raise UsageError(f"{name} is no base64") from None
    if "tensor" in value:
        return tensor(torch_load(held, name), name)
    arrays = list(members(held, name).values())
    if len(arrays) != 1:
        raise UsageError(f"{name} holds {len(arrays)} arrays, an output is one")
    return arrays[0]()
