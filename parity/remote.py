"""Stores that other machines see, by fsspec URL: opened and asked; every answer that does not come is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from parity.errors import UsageError

INSTALL = "pip install 'parity-harness[nightly]' -c constraints.txt"


class Unreachable(UsageError):
    """A store that does not answer: worth another try."""


def open_store(url: str) -> tuple[Any, str]:
    """The file system of an URL, and the path in it.

    Raises:
        UsageError: fsspec or the package of the protocol is missing, or there is no such protocol.
    """
    try:
        from fsspec.core import url_to_fs
    except ModuleNotFoundError:
        raise UsageError(f"{url} needs fsspec: {INSTALL}") from None
    files, root = ask(url, lambda: url_to_fs(url))
    return files, root.rstrip("/")


def ask(url: str, question: Callable[[], Any], limit: float | None = None) -> Any:
    """What a store answers.

    Args:
        limit: seconds; None where whoever asks is limited already, as the job of a night is.

    Raises:
        FileNotFoundError: there is nothing.
        UsageError: it cannot be asked.
        Unreachable: it does not answer, or breaks off.
    """
    try:
        return question() if limit is None else _within(limit, question)
    except FileNotFoundError:
        raise
    except (ValueError, ImportError) as error:
        raise UsageError(f"{url} cannot be read: {said(error)}") from None
    except Exception as error:
        raise Unreachable(f"{url} does not answer: {said(error)}") from None


def said(error: Exception) -> str:
    """An error's kind and words, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _within(limit: float, question: Callable[[], Any]) -> Any:
    """Its answer; the thread of one that never comes is left behind, and does not keep the process."""
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append((question(), None))
        except Exception as error:
            ended.append((None, error))

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit)
    if not ended:
        raise TimeoutError(f"no answer within {limit:g} s")
    answer, error = ended[0]
    if error:
        raise error
    return answer
