"""msprobe dumps: `step0/rank0/dump.json` (or `debug.json`) beside `dump_tensor_data/*.pt|.npy`.

Format: mindstudio-probe (gitee.com/ascend/mstt), msprobe/core/dump/data_dump/json_writer.py (`initialize_json_file`)
and data_processor/base.py (`get_save_file_path`), as of 26.2.0: every tensor's record has a `data_name`, the file it
was saved to; without torch.distributed a rank's folder is `proc{pid}`. A tensor's name here is its `data_name`
without the suffix: `Module.model.norm.GptOssRMSNorm.forward.0.output.0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from parity.errors import UsageError
from parity.imports.arrays import below, held, read_json, refuse_executed
from parity.imports.captured import Captured, TorchLoad

INDEX = ("dump.json", "debug.json")


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every tensor that an index names.

    Raises:
        UsageError: there is no index, it names no tensors, or a tensor's file is missing.
    """
    files = {path for root in paths for path in below(root)}
    indices = sorted(path for path in files if path.name in INDEX)
    if not indices:
        raise UsageError(f"{paths[0]} is no msprobe dump: there is no {' or '.join(INDEX)} below it")
    for index in indices:
        names = list(_names(read_json(index).get("data", {})))
        if not names and len(indices) == 1:
            raise UsageError(f"{index} names no tensor: dump with task `tensor`, statistics are not enough")
        for name in names:
            path = index.parent / "dump_tensor_data" / name
            if path.name != name:
                raise UsageError(f"{index}: {name!r} is no file name")
            refuse_executed(path)
            if path not in files:
                raise UsageError(f"{path} is missing: the index names it")
            yield Captured(path.stem, str(path), partial(_load, path, torch_load), _rank(index), _step(index))


def _names(data: Any) -> Iterator[str]:
    """Every `data_name` in the nested records."""
    if isinstance(data, dict):
        if isinstance(data.get("data_name"), str):
            yield data["data_name"]
        yield from (name for part in data.values() for name in _names(part))
    elif isinstance(data, list):
        yield from (name for part in data for name in _names(part))


def _rank(index: Path) -> int:
    rank = re.fullmatch(r"rank(\d+)", index.parent.name)
    return int(rank[1]) if rank else 0


def _step(index: Path) -> int | None:
    step = re.fullmatch(r"step(\d+)", index.parent.parent.name)
    return int(step[1]) if step else None


def _load(path: Path, torch_load: TorchLoad) -> NDArray[Any]:
    readers = held(path, torch_load)
    if len(readers) != 1:
        raise UsageError(f"{path} holds {len(readers)} tensors, an msprobe file holds one")
    return readers[0][1]()
