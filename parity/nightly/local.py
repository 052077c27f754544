"""The engine of one machine: so many jobs at a time, each in a process of its own."""

from __future__ import annotations

import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from threading import Lock

from parity.nightly.jobs import Answer, Job
from parity.nightly.process import end, environment, run_job


class Local:
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
        self._waiting: PriorityQueue = PriorityQueue()
        self._count = count()
        self._running: set[subprocess.Popen] = set()
        self._lock, self._stopped = Lock(), False

    def submit(self, job: Job, log: Path, rank: float) -> Future[Answer]:
        """Start a job as soon as there is room and no lower rank waits; `log` takes what it prints."""
        found: Future[Answer] = Future()
        self._waiting.put((rank, next(self._count), job.model_dump_json(), log, found))
        self._pool.submit(self._next)
        return found

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
        _, _, job, log, found = self._waiting.get()
        try:
            found.set_result(self._run(job, log))
        except Exception as error:
            found.set_exception(error)

    def _run(self, job: str, log: Path) -> Answer:
        for _ in range(1 + self.retries):
            held: list[subprocess.Popen] = []
            answer = run_job(
                job, log, self.limit, environment(), str(Path.cwd()), lambda process: self._hold(process, held)
            )
            with self._lock:
                self._running.difference_update(held)
            if not answer.lost or self._stopped:
                break
        return answer

    def _hold(self, process: subprocess.Popen, held: list[subprocess.Popen]) -> None:
        with self._lock:
            held.append(process)
            self._running.add(process)
            if self._stopped:
                end(process)
