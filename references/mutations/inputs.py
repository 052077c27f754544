"""Other ids, positions, slots or prompts than the drafter's rows should have."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoTokenizer

from parity.errors import UsageError
from parity.references.mutations import NotApplicable, replaced, wrapped
from parity.references.template import rendered


@contextmanager
def _sequence(loop: Any):
    """A function that gives prompt and emitted tokens so far, and the target's greedy ids over the prompt."""
    seen: dict[str, torch.Tensor] = {}

    def prefill(inner, prompt):
        seen["prompt"] = prompt
        return inner(prompt)

    with wrapped(loop, "_prefill", prefill):
        yield lambda: torch.cat((seen["prompt"], torch.tensor(loop.emitted)))


@contextmanager
def shifted(loop: Any, delta: int, prefill_only: bool = False):
    """Committed rows at p hold the token p + 1 + `delta`, as far as it is known."""
    with _sequence(loop) as sequence:

        def ids(inner, committed, masked):
            if prefill_only and loop.draft_length:
                return inner(committed, masked)
            known = sequence()
            places = loop.draft_length + 1 + delta + torch.arange(len(committed))
            return inner(known[places.clamp(0, len(known) - 1)], masked)

        with wrapped(loop, "_ids", ids):
            yield


@contextmanager
def chunked(loop: Any, size: int, fill: str):
    """The last row of every prefill chunk of `size` tokens holds a predicted token, or the prompt's last one."""
    size, predicted = int(size), []

    def greedy(inner, logits):
        if loop.length == 0:
            predicted[:] = [inner(logits)]
        return inner(logits)

    def ids(inner, committed, masked):
        if loop.draft_length == 0:
            if size > len(committed):
                raise NotApplicable(f"the prompt fits into one chunk of {size}")
            ends = torch.arange(size - 1, len(committed), size)
            other = predicted[0][ends] if fill == "predicted" else committed[-1]
            committed = committed.clone()
            committed[ends] = other
        return inner(committed, masked)

    if size < 2:
        raise NotApplicable("chunks of fewer than two tokens")
    with wrapped(loop, "_greedy", greedy), wrapped(loop, "_ids", ids):
        yield


def isolated(loop: Any, others: tuple[tuple[int, int], ...]) -> AbstractContextManager:
    """Committed rows at some positions hold other ids: ((position, id), …)."""
    known = dict(others)
    if not all(0 <= token < loop.drafter.config.vocab_size for token in known.values()):
        raise NotApplicable("an id outside the vocabulary")

    def ids(inner, committed, masked):
        places = enumerate(committed.tolist(), loop.draft_length)
        return inner(torch.tensor([known.get(place, token) for place, token in places], dtype=torch.long), masked)

    return wrapped(loop, "_ids", ids)


def placeholder(loop: Any, token: int | str) -> AbstractContextManager:
    """Masked rows hold another id: a number, or the name of a special token."""
    config, target = loop.drafter.config, loop.target.config
    names = {"pad": target.pad_token_id, "bos": target.bos_token_id, "eos": loop.eos[0] if loop.eos else None}
    token = names.get(token, token)
    if token in (None, config.placeholder_id) or not 0 <= token < config.vocab_size:
        raise NotApplicable(f"placeholder {token}")
    return replaced(loop.drafter, "config", replace(config, placeholder_id=int(token)))


def repeated(loop: Any, value: None) -> AbstractContextManager:
    """Masked rows repeat the last committed token."""
    return wrapped(loop, "_ids", lambda inner, ids, masked: torch.cat((ids, ids[-1:].expand(masked))))


def positions(loop: Any, value: int | str, rows: str = "all", of: str = "_positions") -> AbstractContextManager:
    """Positions (or slots) moved by so many, restarted in each window, or the same on all masked rows.

    `rows`: all, masked, committed, rounds (verify rounds only) or prefill.
    """

    def move(inner, committed, masked):
        true = inner(committed, masked)
        number = torch.arange(committed + masked)
        wanted = {
            "all": number >= 0,
            "masked": number >= committed,
            "committed": (number < committed) & bool(masked or loop.draft_length),
            "rounds": (number >= 0) & (loop.draft_length > 0),
            "prefill": (number >= 0) & (loop.draft_length == 0),
        }[rows]
        first_masked = int(true[min(committed, len(true) - 1)])
        other = {
            "restarted": number,
            "flat": true.clamp(max=int(true[committed - 1])),
            "all the first one's": true.clamp(max=first_masked),
        }
        return torch.where(wanted, true + value if isinstance(value, int) else other[value], true).clamp(0)

    return wrapped(loop, of, move)


@contextmanager
def prompted(loop: Any, form: str):
    """Another prompt: without the chat template around the user's text, or with one piece more or less."""
    prefix, suffix = _template(loop)
    bos = loop.target.config.bos_token_id

    def prefill(inner, prompt):
        ids = prompt.tolist()
        start, end = _shared(prefix, ids), _shared(suffix[::-1], ids[::-1])
        forms = {
            "raw": ids[start : len(ids) - end],
            "without the generation prompt": ids[: len(ids) - end],
            "without the template's opening": ids[start:],
            "with a second start token": [ids[0] if bos is None else bos, *ids],
            "without its first token": ids[1:],
            "without its last token": ids[:-1],
        }
        if forms[form] == ids or len(forms[form]) < 2:
            raise NotApplicable(f"the prompt {form}")
        return inner(torch.tensor(forms[form]))

    with wrapped(loop, "_prefill", prefill):
        yield


def _template(loop: Any) -> tuple[list[int], list[int]]:
    """What the checkpoint's chat template puts before and behind the user's text."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    checkpoint = loop.target.model.name_or_path
    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)
        one, other = (_said(tokenizer, text, checkpoint) for text in ("a", "( 7"))
    except (OSError, ValueError, UsageError) as error:
        raise NotApplicable(f"no usable chat template ({error})") from None
    start = _shared(one, other)
    end = _shared(one[::-1], other[::-1])
    return one[:start], one[len(one) - end :]


def _said(tokenizer: Any, text: str, checkpoint: str) -> list[int]:
    """The tokens of a user's text in the chat template, rendered within limits."""
    said = [{"role": "user", "content": text}]
    prompt = rendered(
        lambda: tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False), checkpoint
    )
    return list(tokenizer(prompt, add_special_tokens=False)["input_ids"])


def _shared(some: list[int], ids: list[int]) -> int:
    """How many tokens two lists have in common from the start."""
    pairs = zip(some, ids, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(some), len(ids)))
