"""What the drafter attends to: rows that are never written anew, a prompt it never saw, other masks over its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product

from parity.families import BLOCK, FAMILIES, TAPS
from parity.references.hypotheses.catalogue import MODELS, PARALLEL, ROWS, TAPPED, Family, Fit, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.masks import attending
from parity.references.hypotheses.mutating import Layer, Layers, NotApplicable, drafter_layers, together
from parity.references.hypotheses.rolled_back import uncropped

AGAIN_FIX = "every accepted token is fed again with its true hidden"
PREFILL_FIX = "the drafter runs over the whole prompt and keeps its rows"

Pair = tuple[Tensor, Tensor]

committed = Family(stages=("kv.drafter.*",), fix=AGAIN_FIX, seen=("vLLM #14649",), cost=2, drafters=TAPPED)


def placeholders_kept(loop: Loop, value: Layers, fresh: int) -> Mutation:
    """Rows that drafting wrote are never overwritten by the emitted token's own, but for the `fresh` newest."""
    return together(_kept(loop, layer.self_attn, fresh) for _, layer in drafter_layers(loop, value))


@contextmanager
def _kept(loop: Loop, attention: Layer, fresh: int) -> Iterator[None]:
    held: list[Pair] = []

    def remember(inner: Callable[..., Pair], k: Tensor, v: Tensor, cache: Layer) -> Pair:
        start = cache.start
        if start and held and held[0][0].shape[2] > start:
            k, v = k.clone(), v.clone()
            for new, old in zip((k, v), held[0], strict=True):
                many = min(old.shape[2] - start, len(loop.state.pending_taps) - fresh)
                new[:, :, :many] = old[:, :, start : start + many]
        held[:] = [inner(k, v, cache)]
        return held[0]

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        held.clear()
        inner(prompt)

    with attention.remember.around(remember), loop.prefill_drafter.around(prefill):
        yield


for end, fresh, whose, drafters in (
    ("", 0, "emitted tokens'", MODELS),
    ("-accepted", 1, "accepted drafts'", TAPPED),
):
    committed(
        f"commit-stale-placeholder{end}",
        f"rows that drafting wrote are never overwritten by the {whose} own",
        stages=("drafter.layers.*.attn_out", "kv.drafter.*"),
        layered=True,
        drafters=drafters,
    )(partial(placeholders_kept, fresh=fresh))


@committed("commit-accepted-kept", "accepted drafts keep the rows that drafting wrote, they are not fed again")
def _(loop: Loop, value: None) -> Mutation:
    """Only what drafting wrote no row of is fed with its true hidden."""

    def commit(inner: Callable[[int], None], emitted: int) -> None:
        state = loop.state
        with uncropped(loop) as hand_over:
            inner(emitted)
        kept = min(emitted - 1, state.cache.rows[0][0].shape[2] - state.draft_length)
        state.draft_length += kept
        state.pending_taps = state.pending_taps[kept:]
        state.cache.crop(state.draft_length)
        hand_over()

    return loop.commit.around(commit)


@committed(
    "commit-last-row-only",
    "of the accepted tokens only {value} fed again",
    stages=("drafter.taps",),
    values=("the newest is", "those that drafting wrote no row of are"),
)
def _(loop: Loop, value: str) -> Mutation:
    """The rows that drafting wrote stand for the other accepted ones."""
    before: dict[int, Pair] = {}

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        state = loop.state
        skipped = len(state.pending_taps) - 1
        if skipped and value != "the newest is":
            skipped = min(skipped, before[0][0].shape[2] - state.draft_length)
        if skipped:
            state.pending_taps = state.pending_taps[skipped:]
            start, end = state.draft_length, state.draft_length + skipped
            for layer, (k, v) in state.cache.rows.items():
                older = before[layer]
                state.cache.rows[layer] = _filled(k, older[0], start, end), _filled(v, older[1], start, end)
            state.draft_length = end
        drafts = inner()
        before.update(state.cache.rows)
        return drafts

    return loop.draft.around(draft)


def _filled(rows: Tensor, old: Tensor, start: int, end: int) -> Tensor:
    """Rows [B, G, S, D] with slots `start` … `end` - 1 of an older state behind them, zeros where it had none."""
    filled = torch.cat((rows[:, :, :start], old[:, :, start:end]), 2)
    missing = end - filled.shape[2]
    return torch.cat((filled, filled.new_zeros(*filled.shape[:2], missing, filled.shape[3])), 2)


def _unrotated(loop: Loop, value: Layers) -> Mutation:
    """The drafter's cache keeps keys as they were before RoPE, and later passes read them as rotated."""
    return together(_plain_keys(layer.self_attn) for _, layer in drafter_layers(loop, value))


@contextmanager
def _plain_keys(attention: Layer) -> Iterator[None]:
    plain: list[Tensor] = []

    def turn(inner: Callable[..., Pair], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
        plain[:] = [k.transpose(1, 2)]
        return inner(q, k, cos, sin)

    def remember(inner: Callable[..., Pair], k: Tensor, v: Tensor, cache: Layer) -> Pair:
        keys, values = inner(plain[0], v, cache)
        return torch.cat((keys[:, :, : -k.shape[2]], k), dim=2), values

    with attention.turn.around(turn), attention.remember.around(remember):
        yield


PREFILLED = ("drafter.taps", "drafter.input_ids", "kv.drafter.*")
prefilling = Family(stages=PREFILLED, fix=PREFILL_FIX, seen=("NKIPy PR 63",), drafters=MODELS)
prefilling(
    "cache-before-rope",
    "the drafter's cache keeps keys from before the rotation",
    stages=("kv.drafter.*.k",),
    layered=True,
    fix="rotate, then write",
    seen=(),
)(_unrotated)


@prefilling("input-no-prefill", "the drafter's prefill is {value}", values=("unstored", "skipped"))
def _(loop: Loop, how: str) -> Mutation:
    """Its rows are computed and not stored, or not computed and not handed over: zeros."""

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        if how == "unstored":
            inner(prompt)
        else:
            with loop.tap.around(lambda tap, stage, value, *rows: value):
                inner(prompt)
        rows = loop.state.cache.rows
        rows |= {layer: (torch.zeros_like(k), torch.zeros_like(v)) for layer, (k, v) in rows.items()}

    return loop.prefill_drafter.around(prefill)


@prefilling(
    "input-no-prefill-cache",
    "the drafter never runs over the prompt, its cache starts empty: (it hands over, positions start at) {value}",
    values=product(("nothing", "empty tensors"), ("0", "the prompt's end")),
)
@contextmanager
def _(loop: Loop, how: tuple[str, str]) -> Iterator[None]:
    handed, positions = how
    before = [0]

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        _forget_rows(loop)
        ran = FAMILIES[loop.drafter.config.family].prompt_rows(len(prompt))
        before[:] = [ran if positions == "the prompt's end" else 0]
        if handed == "empty tensors":
            _hand_over_nothing(loop)

    places = loop.positions.around(lambda inner, committed, masked: inner(committed, masked) + before[0])
    with loop.prefill_drafter.around(prefill), places:
        yield


@prefilling(
    "drafter-no-cache",
    "the drafter has no cache: a pass sees its own rows alone, whose positions start at {value}",
    values=("0", "their tokens' own"),
    fix="a cache for the drafter, and its prefill over the prompt",
    seen=("NKIPy example",),
    drafters=TAPPED,
)
def _(loop: Loop, positions: str) -> Mutation:
    """It does not run over the prompt, and hands over neither rows nor their number."""

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        forget()

    def forget() -> None:
        _forget_rows(loop)
        loop.state.draft_length = 0

    def draft(inner: Callable[[], Tensor]) -> Tensor:
        forget()
        return inner()

    def places(inner: Callable[..., Tensor], committed: int, masked: int) -> Tensor:
        return inner(committed, masked) + (0 if positions == "0" else loop.state.length - committed)

    def cached(inner: Callable[..., Pair], name: str, k: Tensor, v: Tensor) -> Pair:
        return (k, v) if name.startswith("kv.drafter.") else inner(name, k, v)

    def tap(inner: Callable[..., Tensor], stage: str, value: Tensor, *rows: int) -> Tensor:
        return value if stage == "kv.drafter.length" else inner(stage, value, *rows)

    return together(
        (
            *(loop.prefill_drafter.around(prefill), loop.draft.around(draft), loop.positions.around(places)),
            *(loop.cached.around(cached), loop.tap.around(tap)),
        )
    )


def _forget_rows(loop: Loop) -> None:
    """Empty the drafter's cache."""
    config = loop.drafter.config
    empty = loop.drafter.norm.weight.new_zeros(1, config.num_kv_heads, 0, config.head_dim)
    loop.state.cache.rows = dict.fromkeys(range(config.num_layers), (empty, empty))


def _hand_over_nothing(loop: Loop) -> None:
    """The drafter's stages of a prefill without rows."""
    config, has = loop.drafter.config, FAMILIES[loop.drafter.config.family].has
    rows, ids = loop.drafter.norm.weight.new_zeros(0, config.hidden_size), torch.zeros(0).long()
    known = {"positions": ids, "slots": ids}
    if TAPS in has:
        known |= {"taps": rows.new_zeros(0, loop.drafter.fc.in_features), "fc_out": rows}
    if BLOCK not in has:
        known |= {"input_ids": ids}
        known |= {
            f"layers.{layer}.{part}": rows
            for layer in range(config.num_layers)
            for part in ("attn_out", "ffn_out", "out")
        }
    for stage, value in known.items():
        loop.tap(f"drafter.{stage}", value)


@contextmanager
def _seeing(loop: Loop, value: Layers, change: Callable[..., Tensor]) -> Iterator[None]:
    """`change(seen, keys, rows, slots, start, C)` says what the drafter's rows see in a verify round, bool [..., W, S].

    `keys` [S] count up from 0, `rows` [W, 1] from the round's first row, whose slot is `start`; `slots` [W, 1] are the
    rows' own.
    """
    asked: list[tuple[Tensor, int]] = []

    def mask(inner: Callable[..., Tensor], slots: Tensor, committed: int) -> Tensor:
        asked[:] = [(slots[:, None], committed)]
        return inner(slots, committed)

    def attend(inner: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        start, (slots, committed) = loop.state.draft_length, asked[0]
        if start:
            seen = change(seen, torch.arange(seen.shape[-1]), slots - start, slots, start, committed)
        return inner(q, k, v, seen)

    with loop.mask.around(mask), attending(loop, value, attend, side="drafter"):
        yield


seeing = Family(
    _seeing,
    stages=("drafter.layers.*.attn_out",),
    layered=True,
    fix="all rows attend causally over the whole drafter cache, those behind the committed ones included",
    cost=2,
    drafters=ROWS,
)
seeing("input-context-blind", "a drafter row sees: its own window only", seen=("NKIPy PR 63",))(
    lambda seen, keys, rows, slots, start, committed: seen & (keys >= start)
)
seeing("drafter-rows-apart", "a drafter row sees: the cache and itself only")(
    lambda seen, keys, rows, slots, start, committed: seen & ((keys < start) | (keys == slots))
)
seeing("drafter-masked-apart", "a drafter row sees: no row behind the committed ones but itself")(
    lambda seen, keys, rows, slots, start, committed: seen & ((keys < start + committed) | (keys == slots))
)
seeing("drafter-masked-all", "a drafter row sees: all masked rows", drafters=PARALLEL)(
    lambda seen, keys, rows, slots, start, committed: seen | ((rows >= committed) & (keys >= start + committed))
)
seeing("drafter-window-all", "a drafter row sees: all rows of its window")(
    lambda seen, keys, rows, slots, start, committed: seen | (keys >= start)
)
seeing("drafter-committed-see-masked", "a drafter row sees: committed rows see masked ones", drafters=PARALLEL)(
    lambda seen, keys, rows, slots, start, committed: seen | ((rows < committed) & (keys >= start + committed))
)

window = Family(stages=("drafter.layers.0.attn_out",))


@window(
    "drafter-window",
    "a drafter row sees only the newest {value} rows",
    values=(128, 64, 32, 16),
    fit=Fit(1, 4096, clean=None, log=True, whole=True),
    fix="the drafter has no window",
)
def _(loop: Loop, value: int) -> Mutation:
    if value < 1:
        raise NotApplicable("no row at all")

    def mask(inner: Callable[..., Tensor], slots: Tensor, committed: int) -> Tensor:
        seen = inner(slots, committed)
        return seen & (torch.arange(seen.shape[1]) > slots[:, None] - value)

    return loop.mask.around(mask)
