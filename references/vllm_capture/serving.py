"""vLLM as a peer: its own engine on the same pair, in its own environment, as a device whose loop is one piece.

`parity bench --peer vllm` times it beside a device. It shows no stage and judges nothing; what it emits is its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from parity.errors import Inconclusive
from parity.references.drafter_formats import read_drafter
from parity.references.vllm_capture.adapt import adapted, check_target, parallel, read_config
from parity.references.vllm_capture.case import eos
from parity.references.vllm_capture.environment import find_python
from parity.seam import Description, OnRound, Shown, Tap

INSIDE = Path(__file__).parent / "inside" / "vllm_serving.py"
PATIENCE = 10.0
"""Seconds from asking an engine to end to ending it: who waits here may have pressed Ctrl-C, which counts once."""
REJECTED = -1
"""In place of a draft that vLLM rejected: it does not say which one it was."""


def load(
    target: str | Path,
    drafter: str | Path,
    k: int,
    precision: str = "bfloat16",
    max_positions: int | None = None,
    eager: bool = True,
) -> Served:
    """vLLM on a pair of checkpoints; engines start when they are first asked.

    Args:
        eager: without torch.compile, whose C++ needs a compiler and minutes.

    Raises:
        UsageError: vLLM is not there, or cannot run the pair.
    """
    pair = Path(target), Path(drafter)
    check_target(pair[0])
    return Served(pair, k, precision, max_positions, eager, find_python(None))


class Served:
    """Two engines of vLLM, with drafts and without: `parity.seam.Looping`, `PlainDecoding`, `ComputesElsewhere`."""

    def __init__(
        self, pair: tuple[Path, Path], k: int, precision: str, positions: int | None, eager: bool, python: Path
    ) -> None:
        self.pair, self.k, self.precision, self.eager, self.python = pair, k, precision, eager, python
        configs = read_config(pair[0]), read_drafter(pair[1])
        self.configs, context = configs, min(one["max_position_embeddings"] for one in configs)
        self.positions, self.engines = min(positions or context, context), dict[int, Engine]()

    def describe(self) -> Description:
        """What vLLM runs."""
        target, drafter = self.configs
        return Description(
            name="vllm",
            precision=self.precision,
            num_layers=target["num_hidden_layers"],
            num_drafter_layers=drafter["num_hidden_layers"],
            k=self.k,
            max_positions=self.positions,
            eos=tuple(eos(self.pair[0])),
            modules=(__name__,),
            shown=(Shown("drafter.draft_tokens"),),
            forcible=(),
        )

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap, on_round: OnRound) -> list[int]:
        """See `parity.seam.Looping`; a rejected draft is told as `REJECTED`.

        The last token of each step counts as the target's own, which in a step that the budget cut it may not be.
        """
        emitted: list[int] = []
        for fresh in self._engine(self.k).ask(prompt_ids, max_new_tokens):
            drafts = [*fresh[:-1], *[REJECTED] * (self.k + 1 - len(fresh))] if emitted else []
            emitted += fresh
            on_round(drafts, fresh)
        return emitted

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """See `parity.seam.PlainDecoding`."""
        rounds = self._engine(0).ask(prompt_ids, max_new_tokens)
        return [token for fresh in rounds for token in fresh]

    def processor_time(self) -> float:
        """See `parity.seam.ComputesElsewhere`: of all engines, as Linux tells it."""
        return sum(engine.processor_time() for engine in self.engines.values())

    def _engine(self, k: int) -> Engine:
        if k not in self.engines:
            job = {
                "k": k,
                "precision": self.precision,
                "positions": self.positions,
                "eager": self.eager,
                "eos": eos(self.pair[0]),
                "parallel": parallel(self.pair[1]),
            }
            self.engines[k] = Engine(self.python, self.pair, job)
        return self.engines[k]


class Engine:
    """One engine of vLLM's in a process of its own, which ends with this object.

    Raises:
        Inconclusive: it does not start; what it said last.
    """

    def __init__(self, python: Path, pair: tuple[Path, Path], job: dict[str, Any]) -> None:
        self.folder = TemporaryDirectory(prefix="parity-vllm-")
        place = Path(self.folder.name)
        drafter, _ = adapted(pair[1], pair[0], place)
        described, self.log = place / "job.json", place / "log"
        described.write_text(json.dumps(job | {"target": str(pair[0].resolve()), "drafter": str(drafter.resolve())}))
        settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
        fixed = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "PYTHONPATH": ""}
        with self.log.open("w") as said:
            self.process = subprocess.Popen(
                [python, INSIDE, described],
                env=settings | os.environ | fixed,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        weakref.finalize(self, _end, self.process, self.folder)
        self._line()

    def ask(self, ids: Sequence[int], budget: int) -> Iterator[list[int]]:
        """The ids that each step emits, as they come.

        Raises:
            Inconclusive: the engine ended.
        """
        asked = json.dumps({"ids": [int(one) for one in ids], "budget": budget})
        try:
            print(asked, file=self._pipe(self.process.stdin), flush=True)
        except OSError:
            raise self._ended() from None
        while fresh := self._line():
            yield fresh

    def processor_time(self) -> float:
        """Seconds that its threads have computed; 0 where the system does not tell."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        with suppress(OSError, ValueError, IndexError):
            return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
        return 0.0

    def _line(self) -> list[int]:
        line = self._pipe(self.process.stdout).readline()
        if not line:
            raise self._ended()
        found: list[int] = json.loads(line)
        return found

    def _ended(self) -> Inconclusive:
        said = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return Inconclusive(f"vLLM ended (exit {self.process.wait()}): {(said or ['nothing'])[-1][:300]}")

    @staticmethod
    def _pipe(end: IO[str] | None) -> IO[str]:
        assert end is not None, "both are pipes"
        return end


def _end(process: subprocess.Popen[str], folder: TemporaryDirectory[str]) -> None:
    for end in (process.stdin, process.stdout):
        if end is not None:
            end.close()
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    folder.cleanup()
