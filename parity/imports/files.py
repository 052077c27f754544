"""Plain array files: .npy, .npz, .safetensors, .pt, alone or in folders of any depth.

Formats: numpy.lib.format (numpy/doc), the safetensors README (huggingface/safetensors), `torch.save` read with
`weights_only`. Names are paths below the named folder without the suffix, then `/key` where a file holds several; of a
file named by itself the key alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from parity.errors import UsageError
from parity.imports.arrays import ARRAYS, held, refuse_executable
from parity.imports.captured import Captured, TorchLoad

BESIDE = (".json", ".jsonl", ".toml", ".txt", ".md", ".log", ".csv", ".yaml", ".yml")
"""Kinds of files that lie beside tensors and hold none."""


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every array of every file, in the order of their paths."""
    for root in paths:
        for path in tensor_files(root):
            prefix = "" if path == root else path.relative_to(root).with_suffix("").as_posix()
            for key, load in held(path, torch_load):
                name = "/".join(filter(None, (prefix, key))) or path.stem
                yield Captured(name, str(path), load)


def tensor_files(root: Path) -> list[Path]:
    """The array files below a folder, or the file itself.

    Raises:
        UsageError: there is none, or something that is neither an array file nor plain text lies among them.
    """
    found = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    for path in found:
        refuse_executable(path)
        if path.suffix not in (*ARRAYS, *BESIDE):
            raise UsageError(f"{path} is none of {', '.join(ARRAYS)}")
    found = [path for path in found if path.suffix in ARRAYS]
    if not found:
        raise UsageError(f"{root} holds none of {', '.join(ARRAYS)}")
    return found
