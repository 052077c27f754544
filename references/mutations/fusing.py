"""Other ways through `fc`, and other hiddens on the masked rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, changed, rows_from, wrapped


def masked_through_fc(loop: Any, value: str) -> AbstractContextManager:
    """Another vector than `mask_hidden` goes through fc on the masked rows."""
    chunk = loop.target.config.hidden_size
    change = {
        "zero": torch.zeros_like,
        "its first chunk only": lambda hidden: torch.cat((hidden[..., :chunk], 0 * hidden[..., chunk:]), -1),
        "its first chunk repeated": lambda hidden: hidden[..., :chunk].repeat(1, 1, hidden.shape[-1] // chunk),
        "chunks reversed": lambda hidden: torch.cat(hidden.split(chunk, -1)[::-1], -1),
        "ones": torch.ones_like,
    }[value]
    return changed(loop.drafter.mask_hidden, change)


def masked_past_fc(loop: Any, value: str) -> AbstractContextManager:
    """Masked rows carry something that never saw fc."""
    hidden = loop.drafter.mask_hidden[0]
    chunks = hidden.unflatten(-1, (-1, loop.target.config.hidden_size))
    if chunks.shape[-1] != loop.drafter.config.hidden_size:
        raise NotApplicable("target and drafter differ in width")

    def fused(inner, taps, masked):
        rows = inner(taps, masked)
        others = {
            "the first chunk of mask_hidden": chunks[:, 0],
            "the last chunk of mask_hidden": chunks[:, -1],
            "the mean of mask_hidden's chunks": chunks.mean(1),
            "zero": torch.zeros_like(chunks[:, 0]),
            "the last committed row's hidden": rows[len(taps) - 1 : len(taps)],
        }
        return torch.cat((rows[: len(taps)], others[value].to(rows.dtype).expand(masked, -1)))

    return wrapped(loop, "_fused", fused)


def edge_row(loop: Any, value: str) -> AbstractContextManager:
    """The border between committed and masked rows is one row off: which row carries what through fc."""

    def fused(inner, taps, masked):
        rows, border = inner(taps, masked), len(taps)
        if not masked:
            return rows
        rows, hidden = rows.clone(), loop.drafter.mask_hidden[0]
        if value == "the last committed one takes mask_hidden":
            rows[border - 1] = loop.drafter.fuse(hidden)[0]
        elif value == "the first masked one takes the last committed one's taps":
            rows[border] = rows[border - 1]
        else:
            every = loop.target.taps(loop.tap_inputs) if len(loop.emitted) > 1 else taps
            rows[border] = loop.drafter.fuse(rows_from(every, border, 1))[0]
        return rows

    return wrapped(loop, "_fused", fused)


def chunk_missing(loop: Any, place: int) -> AbstractContextManager:
    """This tap does not reach fc's sum."""
    chunk = loop.target.config.hidden_size
    keep = torch.arange(loop.drafter.fc.in_features) // chunk != place
    return changed(loop.drafter.fc.weight, lambda w: w * keep)


def columns(loop: Any, order: tuple[int, ...]) -> AbstractContextManager:
    """fc's input chunks in another order."""
    chunk = loop.target.config.hidden_size
    if len(order) * chunk != loop.drafter.fc.in_features:
        raise NotApplicable(f"fc takes {loop.drafter.fc.in_features} columns")
    return changed(loop.drafter.fc.weight, lambda w: torch.cat([w.split(chunk, 1)[place] for place in order], 1))


def interleaved(loop: Any, value: None) -> AbstractContextManager:
    """The taps interleaved element by element instead of concatenated."""
    chunk = loop.target.config.hidden_size
    return changed(loop.drafter.fc.weight, lambda w: w.unflatten(1, (chunk, -1)).transpose(1, 2).flatten(1))


def one_chunk_only(loop: Any, place: int) -> AbstractContextManager:
    """fc sees this tap alone."""
    chunk = loop.target.config.hidden_size
    keep = torch.arange(loop.drafter.fc.in_features) // chunk == place
    return changed(loop.drafter.fc.weight, lambda w: w * keep)


@contextmanager
def normed_before(loop: Any, over: str):
    """An RMS norm without weight before fc, over all taps together or each alone; of all rows, or not of the masked ones."""
    eps, chunk = loop.drafter.config.eps, loop.target.config.hidden_size
    masked = [0]

    def fused(inner, taps, many):
        masked[:] = [many if over.endswith(", committed rows") else 0]
        return inner(taps, many)

    def fuse(inner, taps):
        rows = taps.unflatten(-1, (-1, chunk if over.startswith("each") else taps.shape[-1]))
        normed = (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)).flatten(-2)
        kept = len(taps) - masked[0]
        return inner(torch.cat((normed[:kept], taps[kept:])))

    with wrapped(loop, "_fused", fused), wrapped(loop.drafter, "fuse", fuse):
        yield


def normed_behind(loop: Any, value: None) -> AbstractContextManager:
    """The hidden norm already on fc's output."""
    norm = loop.drafter.midlayer.hidden_norm
    return wrapped(loop.drafter, "fuse", lambda inner, taps: norm(inner(taps)))


def scaled(loop: Any, factor: float) -> AbstractContextManager:
    """fc's output times a factor."""
    return wrapped(loop.drafter, "fuse", lambda inner, taps: inner(taps) * factor)
