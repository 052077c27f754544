"""One job in a process of its own: what is handed to it, what comes back, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from pydantic import ValidationError, model_validator

from parity.endings import OUTSIDE, by_signal
from parity.home import VARIABLE, home
from parity.nightly import worker
from parity.nightly.records import Cell, CellResult, NightRecord


class GoldenJob(NightRecord):
    """A golden to make or to fetch.

    Attributes:
        name: of the case, family and K it is for.
        schedule: K of each round in turn; nothing where all have `k`.
        kv_cache: formats of its caches; empty for the dtype of its passes.
        sample: how its tokens are drawn; empty for greedy ones.
        given: an existing golden, folder or fsspec URL; '' makes one, or takes the one made before.
        share: fsspec URL below which goldens are kept for other machines; '' keeps it here alone.
    """

    name: str
    target: str
    drafter: str
    prompts: str
    max_new_tokens: int
    k: int
    schedule: tuple[int, ...] = ()
    kv_cache: str = ""
    sample: str = ""
    given: str = ""
    share: str = ""

    @classmethod
    def of(cls, cell: Cell, share: str = "") -> GoldenJob:
        """The golden that a cell needs: the same job for every cell that it serves."""
        axes = cell.axes
        return cls(
            name=f"{axes.case}.{axes.family}.k{axes.k}",
            target=cell.target,
            drafter=cell.drafter,
            prompts=cell.prompts,
            max_new_tokens=cell.max_new_tokens,
            k=axes.k,
            schedule=cell.schedule,
            kv_cache=cell.kv_cache,
            sample=cell.sample,
            given=cell.golden,
            share=share,
        )


class CellJob(NightRecord):
    """A cell to judge on a golden, a folder or an fsspec URL; `repeat` counts how often it was judged that night."""

    night: str
    cell: Cell
    golden: str
    repeat: int = 0


class Job(NightRecord):
    """One of the two."""

    golden: GoldenJob | None = None
    cell: CellJob | None = None

    @model_validator(mode="after")
    def _one(self) -> Job:
        if (self.golden is None) == (self.cell is None):
            raise ValueError("a job is a golden or a cell")
        return self


class Answer(NightRecord):
    """What a job found, or in one sentence why it found nothing.

    Attributes:
        golden: folder of the golden on this machine; `url` where other machines find it, '' nowhere.
        result: of a cell.
        lost: it was the machine or the network that failed: worth another try.
        seconds: from the start of its process to its end.
    """

    golden: str = ""
    url: str = ""
    result: CellResult | None = None
    error: str = ""
    lost: bool = False
    seconds: float = 0.0


COMMAND = (sys.executable, "-m", worker.__name__)
Started = Callable[[subprocess.Popen[bytes]], None]


def environment() -> dict[str, str]:
    """What every job gets beside the environment it starts in, wherever it runs.

    One thread: jobs run side by side, and a sum in another order has other bits.
    """
    threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return {**kept, **threads, VARIABLE: str(home().absolute()), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}


def run_job(
    job: str, log: Path, limit: float, extra: Mapping[str, str], folder: str, started: Started = lambda process: None
) -> Answer:
    """Run a job to its end, its crash or its time limit.

    Args:
        job: a `parity.nightly.process.Job` as JSON.
        log: takes what the process prints.
        limit: seconds.
        extra: see `environment`.
        folder: to work in, where there is such a folder.
        started: told the process, whose group a SIGKILL ends.
    """
    with TemporaryDirectory(prefix="parity-nightly-", ignore_cleanup_errors=True) as scratch, log.open("wb") as output:
        (Path(scratch) / "job.json").write_text(job, encoding="utf-8")
        (Path(scratch) / "tmp").mkdir()
        process = subprocess.Popen(
            [*COMMAND, scratch],
            stdin=subprocess.PIPE,  # closes when this process dies, however it dies: the job ends itself then
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder if Path(folder).is_dir() else None,
            env={**os.environ, **extra, "TMPDIR": str(Path(scratch) / "tmp")},
            start_new_session=True,
        )
        started(process)
        began = monotonic()
        return _ended(process, Path(scratch), limit).model_copy(update={"seconds": monotonic() - began})


def end(process: subprocess.Popen[bytes]) -> None:
    """End a job with all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes], scratch: Path, limit: float) -> Answer:
    late = False
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        end(process)  # what it left behind
        process.wait()
        if process.stdin:
            process.stdin.close()
    if (scratch / "answer.json").is_file():
        return _answer((scratch / "answer.json").read_bytes())
    if late:
        return Answer(error=f"it gave no result within {limit:g} s and was ended")
    return _died(process.returncode)


def _answer(data: bytes) -> Answer:
    try:
        return Answer.model_validate_json(data)
    except ValidationError as error:
        return Answer(error=f"its answer cannot be read: {error.errors()[0]['msg']}")


def _died(code: int) -> Answer:
    if code >= 0:
        return Answer(error=f"its process ended with exit code {code} and no result")
    return Answer(error=f"its process was ended by {by_signal(-code)}", lost=-code in OUTSIDE)
