"""Other tools' dumps as run folders: a reader a format, one name map for all, and one way into our own format.

A reader yields `Captured`: the tool's own name, the rank, the step and how to read the tensor. `names` says which stage
that is, `placing` brings it into the stage's axes, `run` writes the folder.
"""

from __future__ import annotations

from parity.imports import aws, files, hf, msprobe, nxdi, polygraphy, sglang
from parity.imports.captured import Reader

READERS: dict[str, Reader] = {
    "sglang": sglang.read,
    "polygraphy": polygraphy.read,
    "msprobe": msprobe.read,
    "nxdi": nxdi.read,
    "aws": aws.read,
    "hf": hf.read,
    "files": files.read,
}
