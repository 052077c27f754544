"""Caches that hold other rows than those of the emitted tokens."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, chosen, drafter_layers, replaced, together, wrapped


def _silent(loop: Any) -> AbstractContextManager:
    """Nothing is handed over."""
    return replaced(loop, "tap", lambda stage, value: value)


def rolled_back(loop: Any, which: str, how: str) -> AbstractContextManager:
    """The commit keeps other rows than it should, and goes on behind those.

    `how`: noop (rejected rows stay), far (one row too many goes), near (one rejected row stays), reset (all go).
    """

    def length(true: int, held: int) -> int:
        return {"noop": held, "far": true - 1, "near": min(true + 1, held), "reset": 0}[how]

    def target(inner, true):
        inner(length(true, loop.target.rows(0)[0].shape[0]))

    def commit(inner, emitted):
        cache, true = loop.cache, loop.draft_length
        with replaced(cache, "crop", lambda _: None), _postponed(loop) as caches:
            inner(emitted)
        loop.draft_length = length(true, cache.rows[0][0].shape[2])
        cache.crop(loop.draft_length)
        caches()

    both = {"target": [wrapped(loop.target, "crop", target)], "drafter": [wrapped(loop, "_commit", commit)]}
    return together(both[which] if which in both else both["target"] + both["drafter"])


@contextmanager
def _postponed(loop: Any):
    """The caches are not handed over inside; what is yielded hands them over."""
    with replaced(loop, "_caches", lambda: None):
        yield lambda: loop._caches()


def drafter_rows_left(loop: Any, value: None) -> AbstractContextManager:
    """Rejected rows stay behind the drafter's committed ones until the next pass writes over them."""

    def commit(inner, emitted):
        with replaced(loop.cache, "crop", lambda _: None):
            inner(emitted)

    return wrapped(loop, "_commit", commit)


def contents(loop: Any, value: Any, side: str, how: str) -> AbstractContextManager:
    """What the cache holds after each commit, changed as a whole; rows [S, G, D]."""

    def zero_first(x):
        return torch.cat((torch.zeros_like(x[:1]), x[1:]))

    def zero_last(x):
        return torch.cat((x[:-1], torch.zeros_like(x[-1:])))

    change = {
        "one slot late": lambda k, v: tuple(torch.cat((torch.zeros_like(x[:1]), x[:-1])) for x in (k, v)),
        "one slot early": lambda k, v: tuple(torch.cat((x[1:], torch.zeros_like(x[-1:]))) for x in (k, v)),
        "k and v swapped": lambda k, v: (v.clone(), k.clone()),
        "heads reversed": lambda k, v: (k.flip(1), v.flip(1)),
        "head and width transposed": lambda k, v: tuple(x.transpose(1, 2).reshape(x.shape) for x in (k, v)),
        "no first row": lambda k, v: (zero_first(k), zero_first(v)),
        "no last row": lambda k, v: (zero_last(k), zero_last(v)),
        "no v": lambda k, v: (k, torch.zeros_like(v)),
        "one head for all": lambda k, v: tuple(x[:, :1].expand_as(x) for x in (k, v)),
    }[how]
    return changed_rows(loop, value, side, change)


def changed_rows(loop: Any, value: Any, side: str, change: Any) -> AbstractContextManager:
    """`change(k, v)` of what these layers' caches hold [S, G, D] after each commit."""
    count = loop.target.config.num_hidden_layers if side == "target" else loop.drafter.config.num_layers
    wanted = {f"kv.{side}.{layer}" for layer in chosen(range(count), value)}

    def pair(inner, name, k, v):
        return inner(name, *change(k, v)) if name in wanted and len(k) else inner(name, k, v)

    return wrapped(loop, "_pair", pair)


@contextmanager
def last_row_cleared(loop: Any, value: None, side: str, parts: str):
    """A verify round's rollback clears the last committed row of these parts (k, v or both); the lengths are right."""
    committing = [False]

    def commit(inner, emitted):
        committing[:] = [True]
        try:
            inner(emitted)
        finally:
            committing[:] = [False]

    def cleared(x, part):
        return torch.cat((x[:-1], torch.zeros_like(x[-1:]))) if committing[0] and part in parts else x

    rows = changed_rows(loop, "all", side, lambda k, v: (cleared(k, "k"), cleared(v, "v")))
    with wrapped(loop, "_commit", commit), rows:
        yield


def heads_cleared(loop: Any, value: int | str, side: str) -> AbstractContextManager:
    """A rollback that slices the head axis: kv heads from `value` on are zero in all rows after a verify round.

    "as many as rejected rows" counts them from the last head.
    """
    heads = loop.target.config.num_key_value_heads if side == "target" else loop.drafter.config.num_kv_heads
    if not isinstance(value, str) and not 0 <= value < heads:
        raise NotApplicable(f"head {value} of {heads}")

    def clear(x, rejected):
        kept = value if not isinstance(value, str) else max(heads - rejected, 0)
        return x * (torch.arange(heads) < kept)[:, None]

    return changed_behind_rounds(loop, side, lambda k, v, rejected: (clear(k, rejected), clear(v, rejected)))


def changed_behind_rounds(loop: Any, side: str, change: Any) -> AbstractContextManager:
    """`change(k, v, rejected)` of what the caches hold [S, G, D] after each verify round, which rejected so many rows."""
    rejected: list[int] = []

    def commit(inner, length):
        rejected[:] = [loop.k + 1 - length if side == "target" else loop.k - 1]
        return inner(length)

    def behind(k, v):
        return change(k, v, rejected[0]) if rejected else (k, v)

    return together([_fresh(loop, rejected), wrapped(loop, "_commit", commit), changed_rows(loop, "all", side, behind)])


def _fresh(loop: Any, seen: list) -> AbstractContextManager:
    """Forget what was seen when a new sequence begins."""

    def prefill(inner, prompt):
        seen.clear()
        return inner(prompt)

    return wrapped(loop, "_prefill", prefill)


def ring(loop: Any, value: Any) -> AbstractContextManager:
    """Rejected rows have written over the oldest rows of the sliding layers' ring, which rollback brings back in."""
    kinds, window = loop.target.config.layer_types, loop.target.config.sliding_window
    layers = chosen([l for l, kind in enumerate(kinds) if kind == "sliding_attention"], value)

    def crop(inner, length):
        rejected = {layer: [x[length:] for x in loop.target.rows(layer)] for layer in layers}
        inner(length)
        for layer, rows in rejected.items():
            k, v = (x.clone() for x in loop.target.rows(layer))
            slots = length - window + torch.arange(len(rows[0]))
            inside = (slots >= 0) & (slots < len(k))
            k[slots[inside]], v[slots[inside]] = rows[0][inside], rows[1][inside]
            loop.target.load(layer, k, v)

    return wrapped(loop.target, "crop", crop)


def ring_forgets(loop: Any, value: Any) -> AbstractContextManager:
    """Sliding layers' rows behind the window are gone when a rollback needs them: zero."""
    kinds, window = loop.target.config.layer_types, loop.target.config.sliding_window
    layers = chosen([l for l, kind in enumerate(kinds) if kind == "sliding_attention"], value)
    wanted = {f"kv.target.{layer}" for layer in layers}

    def pair(inner, name, k, v):
        if name in wanted:
            kept = (torch.arange(len(k)) >= len(k) - window)[:, None, None]
            k, v = k * kept, v * kept
        return inner(name, k, v)

    return wrapped(loop, "_pair", pair)


def keys_before_rotation(loop: Any, value: Any) -> AbstractContextManager:
    """The drafter's cache keeps keys as they were before RoPE, and later passes read them as rotated."""
    return together(_unrotated(layer.self_attn) for _, layer in drafter_layers(loop, value))


@contextmanager
def _unrotated(attention: Any):
    plain: list[torch.Tensor] = []

    def turn(inner, q, k, cos, sin):
        plain[:] = [k.transpose(1, 2)]
        return inner(q, k, cos, sin)

    def remember(inner, k, v, cache):
        keys, values = inner(plain[0], v, cache)
        return torch.cat((keys[:, :, : -k.shape[2]], k), dim=2), values

    with wrapped(attention, "turn", turn), wrapped(attention, "remember", remember):
        yield


def placeholders_kept(loop: Any, value: Any, fresh: int) -> AbstractContextManager:
    """Rows that a masked row wrote are never written over by the emitted token's true row, but for the `fresh` newest."""
    return together(_kept(loop, layer.self_attn, fresh) for _, layer in drafter_layers(loop, value))


@contextmanager
def _kept(loop: Any, attention: Any, fresh: int):
    held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def remember(inner, k, v, cache):
        start = cache.start
        if start and held and held[0][0].shape[2] > start:
            k, v = k.clone(), v.clone()
            for new, old in zip((k, v), held[0], strict=True):
                many = min(old.shape[2] - start, len(loop.pending_taps) - fresh)
                new[:, :, :many] = old[:, :, start : start + many]
        keys, values = inner(k, v, cache)
        held[:] = [(keys, values)]
        return keys, values

    def prefill(inner, prompt):
        held.clear()
        return inner(prompt)

    with wrapped(attention, "remember", remember), wrapped(loop, "_prefill_drafter", prefill):
        yield


def accepted_rows_kept(loop: Any, value: None) -> AbstractContextManager:
    """Accepted drafts keep the rows of their placeholders; only what has none is fed with its true hidden."""

    def commit(inner, emitted):
        cache = loop.cache
        with replaced(cache, "crop", lambda _: None), _postponed(loop) as caches:
            inner(emitted)
        kept = min(emitted - 1, cache.rows[0][0].shape[2] - loop.draft_length)
        loop.draft_length += kept
        loop.pending_taps = loop.pending_taps[kept:]
        cache.crop(loop.draft_length)
        caches()

    return wrapped(loop, "_commit", commit)


def only_last_committed(loop: Any, value: None) -> AbstractContextManager:
    """Only the newest token is fed again; the placeholders' rows stand for the other accepted ones."""
    before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def draft(inner):
        skipped = len(loop.pending_taps) - 1
        if skipped:
            loop.pending_taps = loop.pending_taps[-1:]
            start, end = loop.draft_length, loop.draft_length + skipped
            for layer, rows in loop.cache.rows.items():
                loop.cache.rows[layer] = tuple(_filled(x, old, start, end) for x, old in zip(rows, before[layer]))
            loop.draft_length = end
        drafts = inner()
        before.update(loop.cache.rows)
        return drafts

    return wrapped(loop, "_draft", draft)


def _filled(rows: torch.Tensor, old: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Rows [B, G, S, D] with slots `start` … `end` - 1 of an older state behind them, zeros where it had none."""
    found = torch.cat((rows[:, :, :start], old[:, :, start:end]), 2)
    missing = end - found.shape[2]
    return torch.cat((found, found.new_zeros(*found.shape[:2], missing, found.shape[3])), 2)


def no_prefill(loop: Any, how: str) -> AbstractContextManager:
    """The drafter never sees the prompt: its rows are not computed (zeros), or computed and not stored."""

    def prefill(inner, prompt):
        if how == "unstored":
            inner(prompt)
        else:
            with _silent(loop):
                inner(prompt)
        cache = loop.cache.rows
        loop.cache.rows = {layer: tuple(torch.zeros_like(x) for x in rows) for layer, rows in cache.items()}

    return wrapped(loop, "_prefill_drafter", prefill)


@contextmanager
def prompt_unseen(loop: Any, how: str):
    """The drafter starts behind the prompt with an empty cache, and hands nothing over for it, or empty tensors.

    `how` is (what it hands over, whether positions start at the prompt's end or at 0).
    """
    handed, positions = how
    before = [0]

    def prefill(inner, prompt):
        config = loop.drafter.config
        empty = loop.drafter.fc.weight.new_zeros(1, config.num_kv_heads, 0, config.head_dim)
        loop.cache.rows = dict.fromkeys(range(config.num_layers), (empty, empty))
        before[:] = [len(prompt) - 1 if positions == "the prompt's end" else 0]
        if handed == "empty tensors":
            _hand_over_nothing(loop)

    places = lambda inner, committed, masked: inner(committed, masked) + before[0]  # noqa: E731
    with wrapped(loop, "_prefill_drafter", prefill), wrapped(loop, "_positions", places):
        yield


def _hand_over_nothing(loop: Any) -> None:
    """The drafter's stages of a prefill without rows."""
    config = loop.drafter.config
    weight = loop.drafter.fc.weight
    taps, rows, ids = weight.new_zeros(0, weight.shape[1]), weight.new_zeros(0, len(weight)), torch.zeros(0).long()
    known = {"taps": taps, "input_ids": ids, "positions": ids, "slots": ids, "fc_out": rows}
    for layer in range(config.num_layers):
        known |= {f"layers.{layer}.{part}": rows for part in ("attn_out", "ffn_out", "out")}
    for stage, value in known.items():
        loop.tap(f"drafter.{stage}", value)


def blind(loop: Any, value: None, what: str) -> AbstractContextManager:
    """What the drafter's rows of a verify round may attend to, over all layers."""

    def mask(inner, slots, committed):
        seen = inner(slots, committed)
        start, rows = int(slots[0]), torch.arange(len(slots))
        if start == 0:
            return seen
        keys = torch.arange(seen.shape[1])
        masked_row, masked_key = (rows >= committed)[:, None], keys >= start + committed
        own = keys == slots[:, None]
        forms = {
            "its own window only": seen & (keys >= start),
            "the cache and itself only": seen & ((keys < start) | own),
            "no other masked row": seen & (~masked_key | own),
            "all masked rows": seen | (masked_row & masked_key),
            "all rows of its window": seen | (keys >= start),
            "committed rows see masked ones": seen | (~masked_row & masked_key),
        }
        return forms[what]

    return wrapped(loop, "_mask", mask)


def rows_dropped(loop: Any, value: int) -> AbstractContextManager:
    """The drafter sees only the newest `value` rows."""
    if value < 1:
        raise NotApplicable("no row at all")
    return wrapped(loop, "_mask", lambda inner, slots, committed: inner(slots, committed) & _near(slots, value))


def _near(slots: torch.Tensor, many: float) -> torch.Tensor:
    return torch.arange(int(slots[0]) + len(slots)) > slots[:, None] - many
