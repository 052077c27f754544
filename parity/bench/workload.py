"""What is decoded: prompts of a JSON-lines file, its first ones, and the same lengthened to a number of positions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parity import files, limits
from parity.errors import UsageError
from parity.partial import scratch
from parity.producers import read_prompts

SHORT = "short"
"""Prompts as they are."""
NAMES = ("id", "question_id", "task_id")
"""Where a line says what it is called."""


@dataclass(frozen=True)
class Workload:
    """Prompts of one kind.

    Attributes:
        name: of the kind: `chat`.
        prompts: ids by the prompts' names.
    """

    name: str
    prompts: dict[str, list[int]]

    @property
    def digest(self) -> str:
        """Of names and ids."""
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()

    def lengthened(self, positions: int) -> Workload:
        """The same prompts with real text before each, so that every prompt has so many positions: the others of the
        file, one after the other and from the first one again.

        Raises:
            UsageError: a prompt is longer already.
        """
        text = [token for ids in self.prompts.values() for token in ids]
        made = {}
        for number, (name, ids) in enumerate(self.prompts.items()):
            left = positions - len(ids)
            if left < 0:
                raise UsageError(f"prompt {name} of {self.name} has {len(ids)} positions, more than {positions}")
            start = number * len(text) // len(self.prompts)
            made[name] = [*(text * (left // len(text) + 2))[start : start + left], *ids]
        return Workload(self.name, made)


def read_workload(
    path: Path, pair: tuple[Path, Path], field: str = "", raw: bool = False, first: int | None = None, name: str = ""
) -> Workload:
    """Read prompts.

    Args:
        path: JSON lines with messages, text or ids; with `field`, of any layout that has this field.
        pair: target and drafter; the target's tokenizer and chat template are used.
        field: a text, or a list of turns, of which the first one is taken: the others answer what the model said.
        raw: the field's text goes in as it is, not as a user's message.
        first: so many prompts from the beginning; all where None.
        name: of the workload; the file's by default.

    Raises:
        UsageError: the file cannot be read, lacks the field, or holds no prompt.
    """
    if not field:
        return _few(name or path.stem, read_prompts(path, *pair), first)
    with scratch("bench") as folder:
        plain = folder / "prompts.jsonl"
        lines = (json.dumps(line) for line in _entries(path, field, raw))
        files.put(plain, "\n".join(lines).encode())
        return _few(name or path.stem, read_prompts(plain, *pair), first)


def _few(name: str, prompts: Sequence[tuple[str, list[int]]], first: int | None) -> Workload:
    return Workload(name, dict(prompts[:first]))


def _entries(path: Path, field: str, raw: bool) -> Iterator[dict[str, Any]]:
    """Each line in the form that prompts have here."""
    data = files.content(path, limits.PROMPTS_BYTES, "prompts")
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        entry = files.parsed(line.encode(), f"{path}:{number}")
        text = _text(entry.get(field) if isinstance(entry, dict) else None)
        if text is None:
            raise UsageError(f"{path}:{number}: {field} is neither a text nor a list of turns")
        called = next((str(entry[name]) for name in NAMES if name in entry), str(number))
        yield {"id": called} | ({"text": text} if raw else {"messages": [{"role": "user", "content": text}]})


def _text(value: Any) -> str | None:
    """A text, the first of several turns, or the content of a message; None for anything else."""
    while isinstance(value, list | dict):
        value = value.get("content") if isinstance(value, dict) else next(iter(value), None)
    return value if isinstance(value, str) and value.strip() else None


def positions_of(context: str) -> int | None:
    """Positions of a context in the user's words: `8K`, `16384`; None for `short`.

    Raises:
        UsageError: it is none.
    """
    if context == SHORT:
        return None
    digits, thousands = context.removesuffix("K").removesuffix("k"), context[-1:] in "Kk"
    if not digits.isdecimal() or not 2 <= (found := int(digits) * (1024 if thousands else 1)) <= limits.TOKENS:
        raise UsageError(f"--context {context}: it is short, or a number of positions as in 8K or 8192")
    return found
