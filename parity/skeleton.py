"""A new device: a runnable skeleton and its test, from templates."""

from __future__ import annotations

import keyword
import sys
from importlib.resources import files
from pathlib import Path
from string import Template

from parity.errors import UsageError
from parity.files import put

LIBRARIES = {
    "numpy": {
        "imports": "import numpy as np\nfrom ml_dtypes import bfloat16\n",
        "dtypes": '{"bfloat16": bfloat16, "float32": np.float32}',
        "zeros": "np.zeros",
        "concatenate": "np.concatenate",
    },
    "torch": {
        "imports": "import numpy as np\nimport torch\n",
        "dtypes": '{"bfloat16": torch.bfloat16, "float32": torch.float32}',
        "zeros": "torch.zeros",
        "concatenate": "torch.cat",
    },
    "jax": {
        "imports": "import numpy as np\nfrom jax import numpy as jnp\n",
        "dtypes": '{"bfloat16": jnp.bfloat16, "float32": jnp.float32}',
        "zeros": "jnp.zeros",
        "concatenate": "jnp.concatenate",
    },
}
"""What the arrays of a skeleton are made by; nothing of it is imported here."""


def write_skeleton(name: str, library: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME.py and test_NAME.py into a folder; their paths.

    Args:
        name: of the module, a Python name.
        library: `numpy`, `torch` or `jax`.

    Raises:
        UsageError: the name is none of a module, or another one's, or a file of this name is there: nothing is
            overwritten.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or not name.isascii():
        raise UsageError(f"{name!r} names no Python module: letters, digits and underscores, as in my_port")
    _refuse_taken(name, folder)
    made = folder / f"{name}.py", folder / f"test_{name}.py"
    for path in made:
        if path.exists() or path.is_symlink():
            raise UsageError(f"{path} exists already: choose another name, or remove it")
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: make it, or choose another --into")
    fills = LIBRARIES[library] | {"name": name, "library": library}
    for path, template in zip(made, ("device.py.txt", "test_device.py.txt"), strict=True):
        text = (files("parity") / "templates" / template).read_text()
        put(path, Template(text).substitute(fills).encode())
    return made


def _refuse_taken(name: str, folder: Path) -> None:
    """Refuse a name that Python finds elsewhere already: one of the two modules would hide the other."""
    found = next(filter(None, (finder.find_spec(name, None) for finder in sys.meta_path)), None)
    where = (found and found.origin) or ("Python itself" if name in sys.stdlib_module_names else "")
    if where and Path(where).resolve() != (folder / f"{name}.py").resolve():
        raise UsageError(f"{name} is another module's name, and one would hide the other ({where}): choose another")
