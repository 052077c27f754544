"""SGLang dumper folders: `step=0___rank=0___dump_index=1___name=attn_out___layer_id=3.pt`.

Format: sgl-project/sglang, python/sglang/srt/debug_utils/dumper.py (`_dump_single`, `_format_tags`) and dump_loader.py
(`parse_meta_from_filename`), as of 0.5.23: tags are `key=value` joined by `___`; the file is a mapping of `value` and
`meta`, a bare tensor in older ones. A tensor's name here is the tag `name`, then the caller's own tags: `attn_out
layer_id=3`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from parity.errors import UsageError
from parity.imports.arrays import of_kind, tensor
from parity.imports.captured import Captured, TorchLoad, numbered

OWN = ("step", "rank", "dump_index", "name", "recompute_status", "pp_rank", "tp_rank", "cp_rank", "ep_rank", "etp_rank")
"""Tags that the dumper sets; the rest are the caller's."""


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every dumped value, in the order of dumping."""
    files = [path for root in paths for path in of_kind(root, [".pt"])]
    tags = {path: _tags(path) for path in files}
    ranks = len({tag["rank"] for tag in tags.values()})
    order = sorted(files, key=lambda path: (int(tags[path]["rank"]), int(tags[path]["dump_index"])))
    yield from numbered(
        Captured(
            name=" ".join([tag["name"], *(f"{key}={value}" for key, value in tag.items() if key not in OWN)]),
            source=str(path),
            load=partial(_load, path, tag, ranks, torch_load),
            rank=int(tag["rank"]),
            step=int(tag["step"]),
        )
        for path, tag in ((path, tags[path]) for path in order)
    )


def _tags(path: Path) -> dict[str, str]:
    """The tags in a file's name."""
    parts = [part.split("=", 1) for part in path.stem.split("___") if "=" in part]
    tags = dict(parts)
    if len(tags) < len(parts):
        raise UsageError(f"{path} has a tag twice in its name")
    numbers = [tags.get(key, "") for key in ("step", "rank", "dump_index")]
    if "name" not in tags or not all(number.isdecimal() for number in numbers):
        raise UsageError(f"{path} is no file of SGLang's dumper: its name lacks step, rank, dump_index or name")
    return tags


def _load(path: Path, tags: dict[str, str], ranks: int, torch_load: TorchLoad) -> NDArray[Any]:
    """The value; what the file says of itself must agree with its name and with the folder."""
    dumped = torch_load(path, str(path))
    if not isinstance(dumped, dict):
        return tensor(dumped, str(path))
    meta = dumped.get("meta") or {}
    if not isinstance(meta, dict) or "value" not in dumped or str(meta.get("rank", tags["rank"])) != tags["rank"]:
        raise UsageError(f"{path} is no file of SGLang's dumper: no value, or another rank inside than in its name")
    if meta.get("world_size", ranks) != ranks:
        raise UsageError(f"{path} was dumped by {meta['world_size']} ranks; there are files of {ranks}")
    return tensor(dumped["value"], str(path))
