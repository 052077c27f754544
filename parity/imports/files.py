"""Plain array files: .npy, .npz, .safetensors, .pt, alone or in folders of any depth.

Formats: numpy.lib.format (numpy/doc), the safetensors README (huggingface/safetensors), `torch.save` read with
`weights_only`. Names are paths below the named folder without the suffix, then `/key` where a file holds several; of a
file named by itself the key alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from parity.imports.arrays import ARRAYS, held
from parity.imports.captured import Captured, TorchLoad
from parity.imports.folders import of_kind


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every array of every file, in the order of their paths."""
    for root in paths:
        for path in of_kind(root, ARRAYS):
            prefix = "" if path == root else path.relative_to(root).with_suffix("").as_posix()
            for key, load in held(path, torch_load):
                name = "/".join(filter(None, (prefix, key))) or path.stem
                yield Captured(name, str(path), load)
