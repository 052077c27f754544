"""Where jobs run: on this machine, so many at a time, or on a Ray cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from threading import Lock
from typing import Any

from parity.errors import UsageError
from parity.nightly.process import Answer, Job, end, environment, run_job


class LocalEngine:
    """Runs jobs side by side, the one of the lowest rank first.

    Args:
        workers: jobs at a time.
        limit: seconds of each.
        retries: how often a job that was lost is begun again.
    """

    name = "local"

    def __init__(self, workers: int, limit: float, retries: int):
        self.limit, self.retries = limit, retries
        self._pool = ThreadPoolExecutor(workers)
        self._waiting: PriorityQueue[tuple[float, int, str, Path, Future[Answer]]] = PriorityQueue()
        self._count = count()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._stopped = Lock(), False

    def submit(self, job: Job, log: Path, rank: float) -> Future[Answer]:
        """Start a job as soon as there is room and no lower rank waits; `log` takes what it prints."""
        answer: Future[Answer] = Future()
        self._waiting.put((rank, next(self._count), job.model_dump_json(), log, answer))
        self._pool.submit(self._next)
        return answer

    def place(self, answer: Answer) -> str:
        """How a job here finds a golden that was provided."""
        return answer.golden

    def stop(self) -> None:
        """End what runs, and forget what waits."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                end(process)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _next(self) -> None:
        _, _, job, log, answer = self._waiting.get()
        try:
            answer.set_result(self._run(job, log))
        except Exception as error:
            answer.set_exception(error)

    def _run(self, job: str, log: Path) -> Answer:
        for _ in range(1 + self.retries):
            started: list[subprocess.Popen[bytes]] = []
            answer = run_job(job, log, self.limit, environment(), str(Path.cwd()), partial(self._hold, started))
            with self._lock:
                self._running.difference_update(started)
            if not answer.lost or self._stopped:
                break
        return answer

    def _hold(self, started: list[subprocess.Popen[bytes]], process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            started.append(process)
            self._running.add(process)
            if self._stopped:
                end(process)


LOG_BYTES = 200_000
"""Of a cell's output, its end, that comes back with the result."""


class RayEngine:
    """Cells on the workers of an existing Ray cluster, one CPU of Ray's each.

    Args:
        address: as `ray.init` takes it; '' asks $RAY_ADDRESS, then this machine.
        limit: seconds of each cell.
        retries: how often a cell is begun again after its worker or its node died.

    Raises:
        UsageError: ray is not installed, or no cluster answers.
    """

    name = "ray"

    def __init__(self, address: str, limit: float, retries: int):
        self._ray = _connected(address)
        options = {"num_cpus": 1, "max_retries": retries, "scheduling_strategy": "SPREAD"}
        self._task = self._ray.remote(**options)(run_here)
        self._limit, self._retries = limit, retries
        self._tasks: list[Any] = []

    def submit(self, job: Job, log: Path, rank: float) -> Future[Answer]:
        """Send a cell to a worker, Ray decides when; its output comes back into `log`."""
        task = self._task.remote(job.model_dump_json(), self._limit, self._retries, environment(), str(Path.cwd()))
        self._tasks.append(task)
        answer: Future[Answer] = Future()
        task.future().add_done_callback(lambda done: answer.set_result(_back(done, log)))
        return answer

    def place(self, answer: Answer) -> str:
        """An URL where there is one; else a path that every worker has to see."""
        return answer.url or answer.golden

    def stop(self) -> None:
        """Cancel what runs, and leave the cluster as it is."""
        if not self._ray.is_initialized():
            return
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()


def run_here(job: str, limit: float, retries: int, extra: dict[str, str], folder: str) -> tuple[str, str]:
    """On a worker: the job in a process of its own, so that a crash is the cell's and not the worker's."""
    with tempfile.TemporaryDirectory(prefix="parity-ray-") as scratch:
        log = Path(scratch) / "log"
        for _ in range(1 + retries):
            answer = run_job(job, log, limit, extra, folder)
            if not answer.lost:
                break
        return answer.model_dump_json(), log.read_bytes()[-LOG_BYTES:].decode(errors="replace")


def _back(done: Future[tuple[str, str]], log: Path) -> Answer:
    """What a task brought; what became of it where it brought nothing."""
    try:
        answer, said = done.result()
        log.write_text(said, encoding="utf-8")
        return Answer.model_validate_json(answer)
    except Exception as error:
        said = " ".join(str(error).split())
        log.write_text(f"{error}\n", encoding="utf-8")
        name = type(error).__name__
        died = "Died" in name or "Crashed" in name
        return Answer(
            error=f"{'its Ray worker or node died, every time it was tried' if died else said[:300]} ({name})"
        )


def _answers(address: str) -> None:
    """Ray itself asks a port where nobody is for nine minutes."""
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal():
            socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); `ray start --head` starts one"
        ) from None


def _connected(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise UsageError("--engine ray needs ray: pip install 'parity-harness[ray]' -c constraints.txt") from None
    _answers(address)
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(
            f"no Ray cluster answers at {address or 'this machine'} ({said}); `ray start --head` starts one"
        ) from None
    if not ray.cluster_resources().get("CPU"):
        ray.shutdown()
        raise UsageError("the Ray cluster has no CPU to run a cell on")
    return ray
