"""Prompts into token ids: chat messages through the checkpoint's own template, raw text, or ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from parity.errors import UsageError
from parity.references.template import rendered

BYTES = 2**26
"""Of a prompts file: 30 times the longest context met, as text."""
FORMS = ("messages", "text", "ids")
LEAST = 2
"""Tokens of a prompt: a drafter pairs each with the one before."""


def read_prompts(path: Path, checkpoint: Path, vocab_size: int) -> list[tuple[str, list[int]]]:
    """Read a JSON-lines file of `{"id", "messages"}`, `{"id", "text"}` or `{"id", "ids"}`.

    Returns (id, token ids) in file order.

    Raises:
        UsageError: the file or a line cannot be read, or an id lies outside the vocabulary.
    """
    lines = [(number, line) for number, line in enumerate(_text(path).splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} holds no prompt")
    places = [f"{path}:{number}" for number, _ in lines]
    entries = [
        _entry(line, where, count) for count, ((_, line), where) in enumerate(zip(lines, places, strict=True), 1)
    ]
    found: dict[str, list[int]] = {}
    for (name, ids), where in zip(_tokenized(entries, checkpoint), places, strict=True):
        _refuse(name, ids, where, vocab_size)
        if name in found:
            raise UsageError(f"{where}: there are two prompts of the id {name}")
        found[name] = ids
    return list(found.items())


def _refuse(name: str, ids: Sequence[Any], where: str, vocab_size: int) -> None:
    """Raises:
    UsageError: a prompt's ids are none of the vocabulary, or too few.
    """
    for token in ids:
        if not (type(token) is int and 0 <= token < vocab_size):
            said = json.dumps(token)[:40]
            raise UsageError(
                f"{where}: prompt {name}: {said} is no token id: they are whole numbers of 0 to {vocab_size - 1} "
                "(vocab_size)"
            )
    if len(ids) < LEAST:
        count = f"{len(ids)} token" if ids else "no token"
        raise UsageError(
            f"{where}: prompt {name} has {count}, at least {LEAST} are needed: a drafter pairs each with the one before"
        )


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise OSError("no regular file" if path.exists() else "there is no such file")
        if path.stat().st_size > BYTES:
            raise OSError(f"more than {BYTES // 2**20} MiB")
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as prompts ({error})") from None


def _entry(line: str, where: str, number: int) -> tuple[str, str, Any]:
    """A prompt's id, form and content."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: a prompt is a JSON object with messages, text or ids")
    if unknown := sorted(entry.keys() - {"id", *FORMS}):
        raise UsageError(f"{where}: a prompt has no {unknown[0][:40]}: its keys are id, and messages, text or ids")
    forms = [form for form in FORMS if form in entry]
    if len(forms) != 1:
        raise UsageError(
            f"{where}: a prompt has one of messages, text and ids; this one has {', '.join(forms) or 'none'}"
        )
    form = forms[0]
    name, value = str(entry.get("id", number)), entry[form]
    if not isinstance(value, str if form == "text" else list):
        raise UsageError(f"{where}: {form} of a prompt is {'text' if form == 'text' else 'a list'}")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UsageError(f"{where}: {form} of a prompt holds half of a surrogate pair, which is no character") from None
    if not name.isprintable() or len(name) > 200:
        raise UsageError(f"{where}: the id of a prompt is a name on one line, of at most 200 characters")
    return name, form, value


def _tokenized(entries: Sequence[tuple[str, str, Any]], checkpoint: Path) -> Iterator[tuple[str, list[Any]]]:
    """Each prompt's id and token ids; a tokenizer is loaded where one is needed, one process renders all messages."""
    if all(form == "ids" for _, form, _ in entries):
        yield from ((name, list(value)) for name, _, value in entries)
        return
    tokenizer = _tokenizer(checkpoint)
    told = partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False)
    renders = [partial(told, value) for _, form, value in entries if form == "messages"]
    with closing(rendered(renders, checkpoint)) as texts:
        for name, form, value in entries:
            if form == "messages":
                yield name, list(tokenizer(next(texts), add_special_tokens=False)["input_ids"])
            else:
                yield name, list(value) if form == "ids" else list(tokenizer(value)["input_ids"])


def _tokenizer(checkpoint: Path) -> Any:
    from transformers import AutoTokenizer  # ids need none, and to import it takes seconds

    try:
        return AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizer.json is parsed by a library of its own, which raises bare exceptions
        said = (str(error).splitlines() or [type(error).__name__])[0]
        said = said if (checkpoint / "tokenizer.json").exists() else "there is no tokenizer.json in it"
        raise UsageError(f"{checkpoint} has no usable tokenizer: {said}") from None
