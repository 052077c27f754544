"""What a night can know before it begins: cells that cannot be conclusive, and why.

Nothing is computed: files are looked at, and every device is imported in a process of its own. What only a run shows
(a device that raises, an interval that stays too wide) is not foreseen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from parity import files, limits
from parity.endings import by_signal
from parity.errors import ParityError, UsageError
from parity.gates.acceptance_interval import PROMPTS, least_rounds
from parity.gates.context import GateContext
from parity.golden.store import Dump
from parity.golden.trust import refuse_stale
from parity.nightly.goldens import GREEDY
from parity.nightly.process import environment
from parity.nightly.records import Cell
from parity.policy import read_policy
from parity.stages import DRAFTER_TAPS

IMPORTS = 120.0
"""Seconds that the devices have to be imported in: a compiler's runtime may take a minute of them."""
NEEDED = {"taps": (DRAFTER_TAPS,), "decisions": ("drafter.logits", "drafter.draft_tokens")}
"""Stages of the golden without which a gate says nothing."""
DeviceAsked = tuple[str, str, str, int]
"""Device, target, drafter, K."""


def obstacles(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    """By cell, every reason for which it cannot be conclusive; cells without one are not in it."""
    devices = devices_lack(list(dict.fromkeys(map(_asked, cells))))
    named = {cell.name: (*_files(cell), *_device(cell, devices[_asked(cell)])) for cell in cells}
    return {name: reasons for name, reasons in named.items() if reasons}


def _asked(cell: Cell) -> DeviceAsked:
    return cell.device, cell.target, cell.drafter, cell.axes.k


def _files(cell: Cell) -> Iterator[str]:
    """What is wrong with checkpoints, bounds and golden or prompts."""
    for folder in (cell.target, cell.drafter):
        try:
            files.config_of(Path(folder))
        except UsageError as error:
            yield str(error)
    try:
        read_policy(cell.bounds or None, cell.precision)
    except UsageError as error:
        yield str(error)
    try:
        yield from _golden(cell) if cell.golden and "://" not in cell.golden else _prompts(cell)
    except UsageError as error:
        yield str(error)


def _golden(cell: Cell) -> Iterator[str]:
    """A golden that is here: whether it is this case's, fresh, and holds what the gates need."""
    golden = Dump(Path(cell.golden))
    manifest, case = golden.manifest, golden.manifest.case
    if manifest.kind != "golden":
        raise UsageError(f"{cell.golden} is no golden")
    ks = [",".join(map(str, ks)) for ks in (case.ks, cell.schedule or (cell.axes.k,))]
    caches = [said or "the dtype of its passes" for said in (case.kv_cache, cell.kv_cache)]
    drawn = [said or GREEDY for said in (case.sampling, cell.sample)]
    budgets = str(case.max_new_tokens), str(cell.max_new_tokens)
    asked = (("K", *ks), ("new tokens", *budgets), ("caches in", *caches), ("tokens drawn by", *drawn))
    for what, there, wanted in asked:
        if there != wanted:
            yield f"the golden {cell.golden} is of {what} {there}, not {wanted}"
    refuse_stale(golden)
    for gate, stages in NEEDED.items():
        if gate in cell.gates and (lacking := [stage for stage in stages if stage not in manifest.stages]):
            yield f"gate {gate}: the golden {cell.golden} lacks {lacking[0]}"
    generations = [prompt.generation for prompt in case.prompts if prompt.generation]
    yield from _acceptance(cell, len(case.prompts), sum(len(one.acceptance_length) for one in generations))


def _prompts(cell: Cell) -> Iterator[str]:
    """The prompts of a golden that is still to be made: each decodes one token a round at the least."""
    if not cell.prompts:
        return
    data = files.content(Path(cell.prompts), limits.PROMPTS_BYTES)
    lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"{cell.prompts} holds no prompt")
    for number, line in enumerate(lines, 1):
        if not isinstance(files.parsed(line.encode(), f"{cell.prompts}:{number}"), dict):
            raise UsageError(f"{cell.prompts}:{number} is no JSON object")
    yield from _acceptance(cell, len(lines), len(lines) * max(cell.max_new_tokens - 1, 0))


def _acceptance(cell: Cell, prompts: int, rounds: int) -> Iterator[str]:
    """Too few rounds are never a verdict of the acceptance gate."""
    needed = least_rounds(GateContext.bound)
    if "acceptance" in cell.gates and (prompts < PROMPTS or rounds < needed):
        yield (
            f"gate acceptance: {needed} rounds and {PROMPTS} prompts are needed; these are {prompts} prompts of "
            f"{cell.max_new_tokens} tokens, {rounds} rounds at the most"
        )


def _device(cell: Cell, lack: Mapping[str, str]) -> Iterator[str]:
    """What its import says, for all cells and for the gates that ask for more."""
    for asked_by, why in lack.items():
        if not asked_by or asked_by in cell.gates:
            yield f"gate {asked_by}: {why}" if asked_by else why


def devices_lack(asked: Sequence[DeviceAsked]) -> dict[DeviceAsked, dict[str, str]]:
    """By device, why it cannot be used, by the gate that asks for it, or '' for all; empty where nothing is in sight.

    All are imported in one process; one that ends or hangs it costs no other its answer.
    """
    told: dict[DeviceAsked, dict[str, str]] = {}
    while left := [device for device in asked if device not in told]:
        answers, ending = _imported(left)
        told |= dict(zip(left, answers, strict=False))
        if len(answers) < len(left):
            told[left[len(answers)]] = {"": f"--device {left[len(answers)][0]}: its import {ending}"}
    return told


def _imported(asked: Sequence[DeviceAsked]) -> tuple[list[dict[str, str]], str]:
    """The answers of a process of its own, in order, as far as it came; and how it ended."""
    with TemporaryDirectory(prefix="parity-devices-", ignore_cleanup_errors=True) as folder:
        answers = Path(folder) / "answers"
        answers.touch()
        command = [sys.executable, "-m", __name__, json.dumps(asked), str(answers)]
        try:
            code = subprocess.run(
                command,
                env={**os.environ, **environment()},
                timeout=IMPORTS,
                check=False,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ).returncode
            ending = f"ended its process by {by_signal(-code)}" if code < 0 else f"ended its process (exit code {code})"
        except subprocess.TimeoutExpired:
            ending = f"gave no answer within {IMPORTS:g} s"
        lines = answers.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines], ending


def _lack(device: str, target: str, drafter: str, k: int) -> dict[str, str]:
    """In the other process."""
    from parity.builders import refuse_device

    try:
        rotates = refuse_device(device, Path(target), Path(drafter), k)
    except ParityError as error:
        return {"": str(error)}
    return {} if rotates else {"positions": f"--device {device} shows no rotation alone (parity.seam.Rotary)"}


if __name__ == "__main__":
    with open(sys.argv[2], "a", encoding="utf-8", buffering=1) as told_to:
        for one in json.loads(sys.argv[1]):
            told_to.write(json.dumps(_lack(*one)) + "\n")
    os._exit(0)  # a thread that an import left behind is not waited for
