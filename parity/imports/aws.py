"""vLLM Neuron captures: `draft/dp0/decode_b1_0/model.layers.0/rank0.pt` beside `decode_b1_0_meta.json`.

Format: aws-neuron/aws-neuron-sdk, vllm-neuron/docs/design/accuracy/tensor_capture_design.md, "Output Structure": a
folder a forward pass, in it a folder a module and a file a tensor-parallel rank. A tensor's name here is that path,
`draft/dp0/decode_b1_0/model.layers.0`. Where a model has one prefill and one bucket of decodes they are the steps 0
and 1, 2, …; otherwise the page does not say how passes follow each other, and the map takes the round out of the name
(`round = "{i+1}"`). Nor does it say what the meta file holds: nothing is read from it, but it must be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from parity.errors import UsageError
from parity.imports.arrays import of_kind, read_json, tensor
from parity.imports.captured import Captured, TorchLoad

PASS = re.compile(r"(prefill|decode)_([sb]\d+)_(\d+)")


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every module's tensor of every pass and rank.

    Raises:
        UsageError: there is no pass, a pass lacks its meta file, or a file is no rank's.
    """
    for root in paths:
        passes = sorted(path for path in root.rglob("*") if path.is_dir() and PASS.fullmatch(path.name))
        if not passes:
            raise UsageError(f"{root} is no vLLM Neuron capture: no folder below it is named like decode_b1_0")
        for folder in passes:
            read_json(folder / f"{folder.name}_meta.json")
        for path in of_kind(root, [".pt"]):
            rank = re.fullmatch(r"rank(\d+)\.pt", path.name)
            pass_ = next((folder for folder in path.parents[1:] if folder in passes), None)
            if not rank or pass_ is None:
                raise UsageError(f"{path} is no rank's tensor of a module, in a folder named like decode_b1_0")
            load = partial(lambda path: tensor(torch_load(path, str(path)), str(path)), path)
            name = path.parent.relative_to(root).as_posix()
            yield Captured(name, str(path), load, int(rank[1]), _step(pass_, passes))


def _step(folder: Path, passes: Sequence[Path]) -> int | None:
    """A pass's place among its model's passes, where their names tell."""
    kinds = {path: _kind(path) for path in passes if path.parent == folder.parent}
    prefills = [path for path, (kind, _, _) in kinds.items() if kind == "prefill"]
    buckets = {bucket for path, (_, bucket, _) in kinds.items() if path not in prefills}
    if len(prefills) > 1 or len(buckets) > 1:
        return None
    kind, _, number = kinds[folder]
    return 0 if kind == "prefill" else 1 + int(number)


def _kind(folder: Path) -> tuple[str, str, str]:
    """`prefill` or `decode`, the bucket, and the number, out of a pass's name."""
    kind, bucket, number = folder.name.split("_")
    return kind, bucket, number
