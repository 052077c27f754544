"""Other ways through `fc`, and other hiddens on the masked rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from parity.references.hypotheses.catalogue import FACTOR, PARALLEL, Family, Mutation
from parity.references.hypotheses.inference import Ratio
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.mutating import NotApplicable, changed, hidden_norm_of, rows_from
from parity.references.hypotheses.taps import ORDERS

fuse = Family(stages=("drafter.fc_out",))
masked = fuse.part(drafters=PARALLEL, cost=2)

OTHER_VECTORS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "zero": lambda hidden, chunk: torch.zeros_like(hidden),
    "its first chunk only": lambda hidden, chunk: torch.cat((hidden[..., :chunk], 0 * hidden[..., chunk:]), -1),
    "its first chunk repeated": lambda hidden, chunk: hidden[..., :chunk].repeat(1, 1, hidden.shape[-1] // chunk),
    "chunks reversed": lambda hidden, chunk: torch.cat(hidden.split(chunk, -1)[::-1], -1),
    "ones": lambda hidden, chunk: torch.ones_like(hidden),
}


@masked(
    "fuse-mask-hidden-zero",
    "another vector than mask_hidden goes through fc on the masked rows: {value}",
    values=OTHER_VECTORS,
    fix="loading mask_hidden from the checkpoint, all T * H of it",
    seen=("Automodel #2376",),
)
def _(loop: Loop, value: str) -> Mutation:
    chunk = loop.target.config.hidden_size
    return changed(loop.drafter.mask_hidden, lambda hidden: OTHER_VECTORS[value](hidden, chunk))


PAST_FC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the first chunk of mask_hidden": lambda chunks, last: chunks[:, 0],
    "the last chunk of mask_hidden": lambda chunks, last: chunks[:, -1],
    "the mean of mask_hidden's chunks": lambda chunks, last: chunks.mean(1),
    "the last committed row's hidden": lambda chunks, last: last,
    "zero": lambda chunks, last: torch.zeros_like(chunks[:, 0]),
}


@masked(
    "fuse-mask-bypasses-fc",
    "masked rows carry, in place of mask_hidden through fc: {value}",
    values=PAST_FC,
    fix="mask_hidden has the width of the taps and goes through fc like them",
    seen=("P-EAGLE ports",),
)
def _(loop: Loop, value: str) -> Mutation:
    chunks = loop.drafter.mask_hidden[0].unflatten(-1, (-1, loop.target.config.hidden_size))
    if chunks.shape[-1] != loop.drafter.config.hidden_size:
        raise NotApplicable("target and drafter differ in width")

    def fused(inner: Callable[..., Tensor], taps: Tensor, masked: int) -> Tensor:
        rows, committed = inner(taps, masked), len(taps)
        other = PAST_FC[value](chunks, rows[committed - 1 : committed])
        return torch.cat((rows[:committed], other.to(rows.dtype).expand(masked, -1)))

    return loop.fused.around(fused)


@masked(
    "fuse-border",
    "committed and masked rows part one row off: {value}",
    values=(
        "the first masked one takes the taps behind the last committed one's",
        "the first masked one takes the last committed one's taps",
        "the last committed one takes mask_hidden",
    ),
    fix="the row from which mask_hidden stands in for taps: C",
)
def _(loop: Loop, value: str) -> Mutation:
    def fused(inner: Callable[..., Tensor], taps: Tensor, masked: int) -> Tensor:
        rows, border = inner(taps, masked), len(taps)
        if not masked:
            return rows
        rows = rows.clone()
        if value == "the last committed one takes mask_hidden":
            rows[border - 1] = loop.drafter.fuse(loop.drafter.mask_hidden[0])[0]
        elif value == "the first masked one takes the last committed one's taps":
            rows[border] = rows[border - 1]
        else:
            every = loop.target.taps(loop.tap_inputs) if len(loop.state.emitted) > 1 else taps
            rows[border] = loop.drafter.fuse(rows_from(every, border, 1))[0]
        return rows

    return loop.fused.around(fused)


@masked(
    "fuse-masked-rows-left-over",
    "masked rows take the taps that the pass before left behind the committed ones",
    fix="writing mask_hidden to every masked row, not to the first alone: the buffer holds rejected rows' taps",
)
def _(loop: Loop, value: None) -> Mutation:
    def fused(inner: Callable[..., Tensor], taps: Tensor, masked: int) -> Tensor:
        rows, border = inner(taps, masked), len(taps)
        left = loop.target.taps(loop.tap_inputs) if len(loop.state.emitted) > 1 else taps
        return torch.cat((rows[:border], loop.drafter.fuse(rows_from(left, border, masked))))

    return loop.fused.around(fused)


def _chunks(loop: Loop, kept: Callable[[Tensor], Tensor]) -> Mutation:
    """fc with only those of its columns whose chunk, 0 … T - 1, is `kept`."""
    keep = kept(torch.arange(loop.drafter.fc.in_features) // loop.target.config.hidden_size)
    return changed(loop.drafter.fc.weight, lambda w: w * keep)


@fuse(
    "fuse-tap-missing",
    "tap {value} does not reach fc's sum",
    values=(0, 1, 2),
    fix="the number of taps that are concatenated, or of the shards that are summed",
)
def _(loop: Loop, place: int) -> Mutation:
    return _chunks(loop, lambda chunk: chunk != place)


@fuse(
    "fuse-chunk-order",
    "fc's input chunks are in the order {value}",
    values=ORDERS,
    fix="splitting or packing fc.weight along its input axis",
)
def _(loop: Loop, order: tuple[int, ...]) -> Mutation:
    chunk = loop.target.config.hidden_size
    if len(order) * chunk != loop.drafter.fc.in_features:
        raise NotApplicable(f"fc takes {loop.drafter.fc.in_features} columns")
    return changed(loop.drafter.fc.weight, lambda w: torch.cat([w.split(chunk, 1)[place] for place in order], 1))


INTERLEAVED = {"": False, ", as its columns lie; the taps are in runs": True}
"""Which of the two is taken element by element: what fc's columns are taken for, or how they lie."""


@fuse(
    "fuse-interleaved",
    "fc takes the taps interleaved element by element{value}",
    values=INTERLEAVED,
    fix="stack and reshape instead of concatenation along the hidden axis",
)
def _(loop: Loop, value: str) -> Mutation:
    chunk = loop.target.config.hidden_size
    runs = (-1, chunk) if INTERLEAVED[value] else (chunk, -1)
    return changed(loop.drafter.fc.weight, lambda w: w.unflatten(1, runs).transpose(1, 2).flatten(1))


@fuse(
    "fuse-one-tap",
    "fc sees tap {value} alone",
    values=(0, 1, 2),
    fix="the all-reduce behind a row-sharded fc, or its sliced weight",
)
def _(loop: Loop, place: int) -> Mutation:
    return _chunks(loop, lambda chunk: chunk == place)


@fuse(
    "fuse-norm-ignored",
    "a norm before fc that this drafter does not have, over {value}",
    values=("each", "all", "each, committed rows", "all, committed rows"),
    fix="norm_before_fc and fc_norm of the drafter's config",
    seen=("SGLang #32334", "tokenspeed #751"),
)
@contextmanager
def _(loop: Loop, over: str) -> Iterator[None]:
    """An RMS norm without weight, over all taps together or each alone; of all rows, or not of the masked ones."""
    eps, chunk = loop.drafter.config.eps, loop.target.config.hidden_size
    only, committed = over.endswith(", committed rows"), [0]
    if only and not hasattr(loop.drafter, "mask_hidden"):
        raise NotApplicable("only committed rows go through fc")

    def fused(inner: Callable[..., Tensor], taps: Tensor, behind: int) -> Tensor:
        committed[:] = [len(taps)]
        return inner(taps, behind)

    def normed(inner: Callable[..., Tensor], taps: Tensor) -> Tensor:
        rows = taps.unflatten(-1, (-1, chunk if over.startswith("each") else taps.shape[-1]))
        rows = (rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)).flatten(-2)
        return inner(torch.cat((rows[: committed[0]], taps[committed[0] :])) if only else rows)

    with loop.fused.around(fused) if only else nullcontext(), loop.drafter.fuse.around(normed):
        yield


@fuse(
    "fuse-hidden-norm-early",
    "the hidden norm already stands behind fc",
    fix="hidden_norm belongs into the fusion layer; the residual is the un-normed hidden",
)
def _(loop: Loop, value: None) -> Mutation:
    norm = hidden_norm_of(loop)
    return loop.drafter.fuse.around(lambda inner, taps: norm.forward(inner(taps)))


@fuse(
    "fuse-scaled",
    "fc's output is {value:.4g} times what it should be",
    values=(),
    fit=FACTOR,
    infer=Ratio("drafter.fc_out"),
    fix="the scale of fc.weight, or an all-reduce too many",
)
def _(loop: Loop, factor: float) -> Mutation:
    return loop.drafter.fuse.around(lambda inner, taps: inner(taps) * factor)
