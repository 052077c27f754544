"""The references by name, loaded when something needs them; and run again with the experts that a run chose."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from weakref import finalize

import numpy as np

from parity.errors import UsageError
from parity.golden.store import Dump
from parity.golden.views import DumpView, TrustedGolden
from parity.partial import scratch
from parity.progress import Progress, quiet

REFERENCES = {
    "own": "parity.references.dump",
    "plain": "parity.references.plain",
    "vllm": "parity.references.vllm_capture.dump",
    "eagle": "parity.references.eagle_capture",
}
"""Who can make a golden.

The PyTorch references, the same with the plain target, vLLM in its own environment, the official EAGLE-3 of a checkout.
"""


def load_reference(name: str, threads: int) -> ModuleType:
    """The producer of this name, torch computing on this many threads: its `Request` and `dump_golden`.

    The fields of a `Request` are the options that its producer takes.

    Raises:
        UsageError: torch or transformers is not installed.
    """
    try:
        import_module("torch").set_num_threads(threads)
        return import_module(REFERENCES[name])
    except ModuleNotFoundError as error:
        raise missing(error) from None


def missing(error: ModuleNotFoundError) -> UsageError:
    """What to install for a module that is not there."""
    return UsageError(f"the references need {error.name}: pip install 'parity-harness[references]' -c constraints.txt")


class ReferenceRerun:
    """`parity.compare.basis.Rerun` by the PyTorch references, each run's once; what it writes goes with it."""

    def __init__(self, progress: Progress = quiet) -> None:
        self._progress = progress
        self._made: dict[tuple[Path, Path, str, tuple[int, ...], str, bool, int], Dump] = {}
        self._folders = ExitStack()
        finalize(self, self._folders.close)

    def __call__(
        self, golden: TrustedGolden, run: DumpView, prompts: Sequence[int], floor: bool = True, roundings: int = 1
    ) -> DumpView:
        """The reference with the run's experts, on as many threads as the golden was made with.

        Raises:
            ParityError: torch is not installed, the golden is not the references' own, or its checkpoints are not here.
        """
        case = run.manifest.case.mode, tuple(prompts), _experts(run, prompts)
        key = golden.folder, run.folder, *case, floor, roundings
        if key not in self._made:
            load_reference("own", max(golden.manifest.producer.threads, 1))
            folder = self._folders.enter_context(scratch("rerun"))
            rerun = import_module("parity.references.rerun").rerun
            self._made[key] = Dump(rerun(golden, run, prompts, folder / "golden", self._progress, floor, roundings))
        return self._made[key]


def _experts(run: DumpView, prompts: Sequence[int]) -> str:
    """A digest of the experts that a run has over these prompts, shown or inferred."""
    seen = hashlib.sha256()
    for place in sorted(place for place in run.rows if place[3].endswith(".experts") and place[1] in prompts):
        seen.update(repr((place, np.asarray(run.stored(*place)).tolist())).encode())
    return seen.hexdigest()
