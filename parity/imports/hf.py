"""Hugging Face debugger output: `<Model>_debug_tree_FULL_TENSORS.json` beside one .safetensors a tensor.

Format: huggingface/transformers, src/transformers/model_debugging_utils.py (`model_addition_debugger_context` with
`use_repr=False`), as of 5.23. A tensor's name here is its file's:
`GptOssForCausalLM.model.layers.0.self_attn.o_proj_outputs`. The tree leaves out middle layers and everything that has
children; the files do not, so the files are what is read. A folder holds one forward pass: the step is the folder's
place among those named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from parity.errors import UsageError
from parity.golden import shards
from parity.imports.arrays import of_kind, read_json
from parity.imports.captured import Captured, TorchLoad

TREE = "*_debug_tree_FULL_TENSORS.json"


def read(paths: Sequence[Path], torch_load: TorchLoad) -> Iterator[Captured]:
    """Every tensor of every folder, a folder a step.

    Raises:
        UsageError: a folder has no tree, it holds printed tensors, or a file that it names is missing.
    """
    for step, folder in enumerate(paths):
        trees = sorted(folder.glob(TREE))
        if not trees:
            raise UsageError(f"{folder} holds no {TREE}: it is no output of the model debugger")
        for name in (name for tree in trees for name in _values(read_json(tree), tree)):
            if not (folder / Path(name).name).is_file():
                raise UsageError(f"{folder / name} is missing: the debug tree names it")
        for path in of_kind(folder, [".safetensors"]):
            yield Captured(path.stem, str(path), partial(_load, path), step=step)


def _values(node: Any, tree: Path) -> Iterator[str]:
    """The files that a tree names."""
    if isinstance(node, dict):
        value = node.get("value")
        if isinstance(value, list) and "dtype" in node:
            raise UsageError(f"{tree} holds printed tensors: run the debugger with use_repr=False")
        if isinstance(value, str) and "dtype" in node:
            yield value
        yield from (name for part in node.values() for name in _values(part, tree))
    elif isinstance(node, list):
        yield from (name for part in node for name in _values(part, tree))


def _load(path: Path) -> NDArray[Any]:
    tensors = shards.read(path)
    if set(tensors) != {"data"}:
        raise UsageError(f"{path} holds {', '.join(tensors)}; a file of the model debugger holds `data`")
    return tensors["data"]
