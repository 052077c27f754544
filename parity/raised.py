"""What a device's code raised, in our terms: whose error it is, where it was raised, and its sentence."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from parity.errors import DeviceEnded, DeviceFailed, Inconclusive, NotOffered, ParityError, UsageError
from parity.golden.sources import ROOMS, package

INSTRUMENT = Path(__file__).parent
INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))

LONGEST = 400
"""Characters of an exception's message that are told."""


def as_parity_error(device: str, call: str, error: BaseException) -> ParityError:
    """The error in our terms: a device's own subclass of an error of parity is the class it was made from."""
    for known in (NotOffered, Inconclusive, UsageError):
        if isinstance(error, known):
            return known(error_text(error))
    at = raised_at(error)
    if not isinstance(error, Exception) or type(error).__module__.startswith("click"):
        return DeviceEnded(device, call, f"raised {error_text(error)}, which ends a process,", at)
    return DeviceFailed(device, call, error_text(error), at, refuses(error))


def raised_text(error: BaseException) -> str:
    """What a device raised, its file and line, without saying which device and verb."""
    if isinstance(error, NotOffered):
        return str(error)
    if isinstance(error, ParityError) and not isinstance(error, DeviceFailed):
        return f"{type(error).__name__}: {error}"
    if not isinstance(error, DeviceFailed):
        return error_text(error)
    return f"{error.said} ({error.at})" if error.at else error.said


def refuses(error: BaseException) -> bool:
    """Whether an error is how a device refuses what does not fit: ValueError, NotImplementedError, or an error of
    parity."""
    return (
        error.refuses
        if isinstance(error, DeviceFailed)
        else isinstance(error, ValueError | NotImplementedError | ParityError)
    )


def error_text(error: BaseException) -> str:
    """An exception in one line; its class as well, unless its message is a sentence of parity's."""
    try:
        said = " ".join(str(error).split())[:LONGEST]
    except Exception:
        said = "(its message cannot be read)"
    if isinstance(error, ParityError):
        return said
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def raised_at(error: BaseException) -> str:
    """`file:line` of the innermost frame that is the user's: not parity's, and not an installed package's if there is
    another."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    places = [
        place for place in _frames(error.__traceback__) if not (place[0].startswith("<") or _ours(Path(place[0])))
    ]
    own = [place for place in places if not place[0].startswith(INSTALLED)]
    return "{}:{}".format(*(own or places)[-1]) if places else ""


def is_own(error: BaseException) -> bool:
    """Whether an exception's class is the instrument's: references and devices below it have classes of their own."""
    return package(type(error).__module__) == "parity"


def by_device(error: BaseException) -> bool:
    """Whether the code that raised it is none of the instrument's, such as a tap's."""
    *_, (file, _) = _frames(error.__traceback__)
    return not _ours(Path(file))


def _ours(file: Path) -> bool:
    """Whether a file is the instrument's; references and devices lie below it and are not."""
    return file.is_relative_to(INSTRUMENT) and file.relative_to(INSTRUMENT).parts[0] not in ROOMS


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
