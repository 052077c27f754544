"""Plain array files: .npy, .npz, .safetensors, .pt in, one .npz out."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden.manifest import key
from parity.golden.views import DumpView, TensorPlace
from parity.imports.arrays import ARRAYS, held, of_kind
from parity.imports.captured import Captured, TorchLoad
from parity.partial import partial_file


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every array of every file, in the order of their paths."""
    for root in paths:
        for path in of_kind(root, ARRAYS):
            prefix = "" if path == root else path.relative_to(root).with_suffix("").as_posix()
            for inner, load in held(path, torch_load):
                name = "/".join(filter(None, (prefix, inner))) or path.stem
                yield Captured(name, str(path), load)


def export_npz(dump: DumpView, out: Path) -> int:
    """Write every whole tensor under its key; how many there are.

    Ranks come merged and caches whole. NumPy files have no bfloat16: it becomes float32, which changes no value. The
    keys of a golden begin with the variant: `float32/p000/r0000/target.embed`.

    Raises:
        UsageError: the file exists already.
    """
    try:
        if out.exists():
            raise FileExistsError
        with partial_file(out, fresh=True) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            for place in dump.rows:
                with archive.open(f"{_key(dump, *place)}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, _plain(dump, place), allow_pickle=False)
    except FileExistsError:
        raise UsageError(f"{out} exists already; choose another name or remove it") from None
    return len(dump.rows)


def _key(dump: DumpView, variant: str, prompt: int, round_: int, stage: str) -> str:
    name = key(prompt, round_, stage)
    return name if dump.manifest.kind == "run" else f"{variant}/{name}"


def _plain(dump: DumpView, place: TensorPlace) -> NDArray[Any]:
    array = dump.contents(*place)
    if array is None:
        raise UsageError(f"{dump.folder} lacks {key(*place[1:])}, which it lists")
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
