"""A command of parity in a child of its own: limited, watched from inside by an audit hook, and ended when it hangs."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
ROOM = 6 * 2**30
"""Address space beyond what is there at the fork: enough to see more than 2 GB used, too little to take it all."""
SPAWNS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Ended:
    """How a child ended: exit code (negative: the signal), output, peak memory in bytes, and what the hook saw."""

    code: int
    out: str
    err: str
    memory: int
    hang: bool
    executed: tuple[str, ...]
    outside: tuple[str, ...]


def run(
    arguments: Sequence[str],
    folder: Path,
    seconds: float,
    process: bool,
    before: Callable[[], None] | None,
    piped: bool = False,
) -> Ended:
    """`parity ARGUMENTS` with `folder`/work as working directory; `folder`/outside is what nobody may touch.

    Args:
        piped: what it prints goes through pipes, which have to hold all of it, and is in its logs at the end only.
    """
    logs = {name: folder / f"{name}.log" for name in ("out", "err", "seen")}
    canary = _state(folder / "outside")
    sys.stdout.flush()
    sys.stderr.flush()
    pipes = {name: _pipe() for name in ("out", "err")} if piped else {}
    child = _fork()
    if child == 0:
        _inside(arguments, folder, logs, process, before, {name: end for name, (_, end) in pipes.items()})
    code, memory, hang = _wait(child, seconds)
    for name, ends in pipes.items():
        _drain(ends, logs[name])
    seen = logs["seen"].read_text(errors="replace").splitlines() if logs["seen"].exists() else []
    executed = [line[9:] for line in seen if line.startswith("executed ")]
    outside = [line[8:] for line in seen if line.startswith("outside ")]
    if (folder / "canary").exists():
        executed.append("the canary was written")
    if _state(folder / "outside") != canary:
        outside.append("files outside changed")
    texts = [logs[name].read_bytes().decode(errors="replace") if logs[name].exists() else "" for name in ("out", "err")]
    return Ended(code, *texts, memory, hang, tuple(dict.fromkeys(executed)), tuple(dict.fromkeys(outside)))


def warm(base: Path) -> None:
    """Import and compile in this process what every fork would alone."""
    from parity.api import compare_dumps
    from parity.golden.store import Dump
    from parity.reports import dumps, terminal  # noqa: F401

    golden, made = Dump(base / "golden"), Dump(base / "run")
    for wiring in ("parity.producers", "parity.golden.trust", "parity.imports.run", "rich.table", "rich.progress"):
        import_module(wiring)
    if compare_dumps(golden, made).verdict != "pass":
        raise SystemExit("the clean evidence does not pass: an attack on it would prove nothing")


@cache
def warm_references() -> None:
    """As `warm`, for evidence that is judged by the references run once more; in one thread, which a fork survives."""
    import_module("torch").set_num_threads(1)
    import_module("parity.references.counterfactual")


def start(arguments: Sequence[str], folder: Path, name: str, before: Callable[[], None] | None = None) -> int:
    """Begin a command and go on; its process id. `name` tells its logs from another one's in the same folder."""
    logs = {kind: folder / f"{name}.{kind}.log" for kind in ("out", "err", "seen")}
    child = _fork()
    if child == 0:
        _inside(arguments, folder, logs, False, before)
    return child


def _fork() -> int:
    """Fork this process; JAX, where something here imported it, warns of its threads, which no fork of ours needs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return os.fork()


def _wait(child: int, seconds: float) -> tuple[int, int, bool]:
    """Exit code, peak memory beyond this process's own, whether it had to be ended; what it started ends with it."""
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    hang = not poll.poll(
        seconds * 1000 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    )  # others may use the machine
    if hang:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(handle)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status), max(0, usage.ru_maxrss * 1024 - own), hang


def _pipe() -> tuple[int, int]:
    """Ends to read and to write; it takes a megabyte before a writer waits."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 2**20)
    os.set_blocking(ends[0], False)
    return ends


def _drain(ends: tuple[int, int], log: Path) -> None:
    """What a child printed, behind what is in its log already."""
    os.close(ends[1])
    with open(ends[0], "rb") as printed, log.open("ab") as file:
        file.write(printed.read() or b"")


def wait(child: int, seconds: float) -> tuple[int, bool]:
    """The exit code of what `start` began, and whether it hung."""
    code, _, hang = _wait(child, seconds)
    return code, hang


def _inside(
    arguments, folder: Path, logs, process: bool, before, pipes: Mapping[str, int] = MappingProxyType({})
) -> None:
    """The child: never returns."""
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(pipes[name] if name in pipes else os.open(logs[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder / "work")
    os.environ |= {
        "PARITY_HOME": str(folder / "work" / "home"),
        "COLUMNS": "200",
        "HF_HUB_OFFLINE": "1",
        "TMPDIR": str(folder / "tmp"),
    }
    os.environ |= {"TORTURE_CANARY": str(folder / "canary"), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    if process:
        os.execv(sys.executable, [sys.executable, "-m", "parity", *arguments])
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
    tempfile.tempdir = None  # found by this process' environment, not by its parent's
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, mapped + ROOM))
    watch(folder, os.open(logs["seen"], os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    code = 1
    try:
        if before:
            before()
        code = command(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        threading._shutdown()  # as the interpreter does at its end: threads that are no daemons are waited for
        os._exit(code)


def command(arguments: Sequence[str]) -> int:
    """`parity ARGUMENTS` in this process; its exit code."""
    from parity.cli import main

    sys.argv = ["parity", *arguments]
    try:
        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    return code


def watch(folder: Path, log: int) -> None:
    """Write down code that runs out of the attempt's folder, processes that start, and files touched outside of it."""
    work, outside, busy = str(folder), f"{folder}/outside", threading.local()

    def hook(event: str, arguments: tuple) -> None:
        if getattr(busy, "now", False):
            return
        busy.now = True
        try:
            if found := _suspicious(event, arguments, work, outside):
                os.write(log, f"{found}\n".encode(errors="replace"))
        finally:
            busy.now = False

    sys.addaudithook(hook)


def _suspicious(event: str, arguments: tuple, work: str, outside: str) -> str:
    if event == "exec":
        name = getattr(arguments[0], "co_filename", "")
        return f"executed {name}" if name.startswith(work) else ""
    if event in SPAWNS:
        program = os.path.basename(str(arguments[0]))
        known = program in ("git", "uname", "ldconfig", os.path.basename(sys.executable))
        return "" if known else f"executed {event} {program}"
    if event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2] or 0
        if path.startswith(f"{outside}/"):
            return f"outside {path} was opened"
        if flags & WRITES and not path.startswith((work, "/dev/", "/proc/")) and "__pycache__" not in path:
            return f"outside {path} was written"
    return ""


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file."""
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.rglob("*")}
