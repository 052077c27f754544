"""Prompts into token ids: chat messages through the checkpoint's own template, raw text, or ids."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoTokenizer

from parity.errors import UsageError


def read_prompts(path: Path, checkpoint: Path, vocab_size: int) -> list[tuple[str, list[int]]]:
    """Read a JSON-lines file of `{"id", "messages"}`, `{"id", "text"}` or `{"id", "ids"}`.

    Returns (id, token ids) in file order.

    Raises:
        UsageError: the file or a line cannot be read, or an id lies outside the vocabulary.
    """
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as prompts ({error})") from None
    if not lines:
        raise UsageError(f"{path} holds no prompt")
    tokenizer = None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            form = next(key for key in ("messages", "text", "ids") if key in entry)
        except (ValueError, TypeError, StopIteration):
            raise UsageError(f"{path}:{number}: a prompt is a JSON object with messages, text or ids") from None
        if form != "ids" and tokenizer is None:
            tokenizer = _tokenizer(checkpoint)
        ids = _ids(form, entry[form], tokenizer)
        if not all(isinstance(token, int) and 0 <= token < vocab_size for token in ids):
            raise UsageError(f"{path}:{number}: a token id lies outside 0 … {vocab_size - 1} (vocab_size)")
        found.append((str(entry.get("id", number)), ids))
    return found


def _ids(form: str, value, tokenizer) -> list[int]:
    if form == "messages":
        return list(tokenizer.apply_chat_template(value, add_generation_prompt=True)["input_ids"])
    return list(tokenizer(value)["input_ids"]) if form == "text" else list(value)


def _tokenizer(checkpoint: Path):
    try:
        return AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"{checkpoint} has no usable tokenizer: {str(error).splitlines()[0]}") from None
