"""`python -m parity.nightly.worker FOLDER`: one job of a night, from FOLDER/job.json to FOLDER/answer.json."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.nightly.process import Answer, GoldenJob, Job


def main() -> None:
    """Do the job; the answer is there whole or not at all. Ends with whoever started it."""
    folder = Path(sys.argv[1])
    _end_with_parent(folder)
    from parity.nightly.process import Job
    from parity.progress import print_notes

    print_notes()

    try:
        answer = _answer(Job.model_validate_json((folder / "job.json").read_bytes()))
    except BaseException as error:  # SystemExit of a device, too
        answer = _failed(error)
    (folder / "answer.partial").write_text(answer.model_dump_json(), encoding="utf-8")
    (folder / "answer.partial").replace(folder / "answer.json")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of a device are not waited for


def _answer(job: Job) -> Answer:
    from parity.nightly.process import Answer

    if job.golden is not None:
        from parity.nightly.goldens import provide

        return provide(job.golden, _make)
    from parity.golden.store import Dump
    from parity.golden.trust import trusted
    from parity.nightly.cell import judge_cell
    from parity.nightly.goldens import local
    from parity.nightly.process import GoldenJob

    assert job.cell is not None, "a job is a golden or a cell"
    golden = local(GoldenJob.of(job.cell.cell), job.cell.golden)
    opened = trusted(Dump(golden), sampled=bool(job.cell.cell.sample))
    return Answer(result=judge_cell(job.cell.night, job.cell.cell, opened, Path(mkdtemp())))


def _make(job: GoldenJob, out: Path) -> None:
    """The references, asked for this golden."""
    from parity.producers import dump_golden

    pair, k = (Path(job.target), Path(job.drafter)), job.schedule or job.k
    kept: dict[str, Any] = {"kv_cache": job.kv_cache} if job.kv_cache else {}
    kept |= {"sample": job.sample} if job.sample else {}
    dump_golden(*pair, Path(job.prompts), k, job.max_new_tokens, out=out, **kept)


def _failed(error: BaseException) -> Answer:
    """One sentence; the traceback is for the log."""
    from parity.errors import ParityError
    from parity.nightly.process import Answer
    from parity.remote import Unreachable

    if isinstance(error, ParityError):
        return Answer(error=str(error), lost=isinstance(error, Unreachable))
    traceback.print_exception(error)
    said = " ".join(str(error).split())
    return Answer(error=f"{type(error).__name__}: {said[:400]}" if said else type(error).__name__)


def _end_with_parent(folder: Path) -> None:
    """Standard input is a pipe that closes when the night dies; this process, what it started and wrote, ends then."""
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def watch() -> None:
        os.read(pipe, 1)
        shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
