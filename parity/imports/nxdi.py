"""NxDI tensor captures: `capture_metadata.json` beside `captured_tensors_tkg_step_2_module_layers.0.mlp_output.pt`.

Format: aws-neuron/neuronx-distributed-inference, src/neuronx_distributed_inference/utils/tensor_capture_utils.py
(`capture_model_tensors`, `TensorCaptureMetadata`, session version 1.0). A tensor's name here is `layers.0.mlp
output`, or `manual 0`; the step is NxDI's, which counts from 1 (`round = "{step-1}"`). A folder is one rank's;
several folders say which by their names (`rank0`, `rank1`, …).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.imports.arrays import below, read_json, tensor
from parity.imports.captured import Captured, TorchLoad

METADATA = "capture_metadata.json"


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every captured tensor of every folder.

    Raises:
        UsageError: metadata or files are missing, or a folder does not say which rank's it is.
    """
    folders = sorted({path.parent for root in paths for path in below(root) if path.name == METADATA})
    if not folders:
        raise UsageError(f"{paths[0]} is no NxDI capture: there is no {METADATA} below it")
    for folder in folders:
        rank = _rank(folder, alone=len(folders) == 1)
        tensors = read_json(folder / METADATA).get("tensors")
        if not isinstance(tensors, dict) or not all(isinstance(about, dict) for about in tensors.values()):
            raise UsageError(f"{folder / METADATA} does not say of its files what they are")
        _same_files(folder, set(tensors))
        for file, about in tensors.items():
            path, step = folder / file, about.get("step")
            if not (step is None or (isinstance(step, int) and step >= 0)):
                raise UsageError(f"{folder / METADATA}: the step of {file} is no number")
            load = partial(lambda path: tensor(torch_load(path, str(path)), str(path)), path)
            yield Captured(_name(about, path), str(path), load, rank, step)


def _name(about: dict[str, Any], path: Path) -> str:
    if about.get("tensor_type") == "manual":
        return f"manual {about.get('tensor_index')}"
    if not about.get("module_name"):
        raise UsageError(f"{path.parent / METADATA} names no module for {path.name}")
    return f"{about['module_name']} {about.get('tensor_type', '')}"


def _same_files(folder: Path, named: set[str]) -> None:
    """Metadata and folder must speak of the same files."""
    there = {path.name for path in folder.glob("*.pt")}
    if odd := sorted(there ^ named):
        said = f"{METADATA} does not name it" if odd[0] in there else "it is missing"
        raise UsageError(f"{folder / odd[0]}: {said} ({len(odd)} such)")


def _rank(folder: Path, alone: bool) -> int:
    rank = re.search(r"rank_?(\d+)$", folder.name)
    if not rank and not alone:
        raise UsageError(f"{folder} does not say which rank's capture it is: name the folders rank0, rank1, …")
    return int(rank[1]) if rank else 0
