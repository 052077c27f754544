"""Caches that hold other rows than those of the emitted tokens, or hold them in another form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from parity.references.hypotheses.catalogue import Family, Mutation
from parity.references.hypotheses.lazily import Loop, Tensor, torch
from parity.references.hypotheses.masks import OUT, attending, sliding, window_of
from parity.references.hypotheses.mutating import Layers, NotApplicable, chosen, head_counts, together
from parity.references.hypotheses.rolled_back import FIX
from parity.references.hypotheses.starting import sized

KV = ("kv.{side}.*",)
AXIS_FIX = "rollback slices the sequence axis, not the head axis"

Pair = tuple[Tensor, Tensor]


def holding(loop: Loop, value: Layers, change: Callable[[Tensor, Tensor], Pair], side: str) -> Mutation:
    """`change(k, v)` of what these layers' caches hold [S, G, D] after each commit."""
    count = loop.target.config.num_hidden_layers if side == "target" else loop.drafter.config.num_layers
    wanted = {f"kv.{side}.{layer}" for layer in chosen(range(count), value)}

    def cached(inner: Callable[..., Pair], name: str, k: Tensor, v: Tensor) -> Pair:
        return inner(name, *change(k, v)) if name in wanted and len(k) else inner(name, k, v)

    return loop.cached.around(cached)


def holding_behind_rounds(loop: Loop, side: str, change: Callable[[Tensor, Tensor, int], Pair]) -> Mutation:
    """`change(k, v, rejected)` of what the caches hold [S, G, D] after each verify round that rejected so many."""
    rejected: list[int] = []

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        rejected.clear()
        inner(prompt)

    def commit(inner: Callable[[int], None], length: int) -> None:
        rejected[:] = [loop.k + 1 - length if side == "target" else loop.k - 1]
        inner(length)

    behind = holding(loop, "all", lambda k, v: change(k, v, rejected[0]) if rejected else (k, v), side)
    return together((loop.prefill.around(prefill), loop.commit.around(commit), behind))


sided = Family(by_side=True, stages=KV, fix=FIX, cost=2)


def last_row_cleared(loop: Loop, value: None, side: str, parts: str) -> Mutation:
    """A verify round's rollback clears the last committed row of these parts (k, v or both); the lengths are right."""

    def cleared(x: Tensor, part: str) -> Tensor:
        return _no_last_row(x) if part in parts and len(x) else x

    return holding_behind_rounds(loop, side, lambda k, v, rejected: (cleared(k, "k"), cleared(v, "v")))


def _no_last_row(x: Tensor) -> Tensor:
    return torch.cat((x[:-1], torch.zeros_like(x[-1:])))


def _no_first_row(x: Tensor) -> Tensor:
    return torch.cat((torch.zeros_like(x[:1]), x[1:]))


for end, parts, names in (("", "kv", "k and v"), ("-k", "k", "k"), ("-v", "v", "v")):
    sided.both(
        f"rollback-row-cleared{end}",
        f"rollback clears the last committed row of {names}, the length is right",
        seen=("class of mlxcel #994",),
    )(partial(last_row_cleared, parts=parts))


Kept = Callable[[Tensor, Tensor, int], Tensor]
"""`change(x, ran, first)`: what a commit leaves of rows x [S, G, D], of which those from `first` on are new; `ran` has
the rows that the commit drops as well."""


def keeping(loop: Loop, value: None, side: str, change: Kept, parts: str = "kv") -> Mutation:
    """A commit keeps other rows of the pass in these parts (k, v or both); the lengths are right."""
    ran: dict[str, Pair] = {}
    before: dict[str, int] = {}

    def prefill(inner: Callable[[Tensor], None], prompt: Tensor) -> None:
        before.clear()
        inner(prompt)

    def commit(inner: Callable[[int], None], length: int) -> None:
        for layer in range(loop.target.config.num_hidden_layers if side == "target" else len(loop.drafter.stack)):
            if side == "target":
                ran[f"kv.{side}.{layer}"] = loop.target.rows(layer)
            else:
                k, v = loop.state.cache.rows[layer]
                ran[f"kv.{side}.{layer}"] = k[0].transpose(0, 1), v[0].transpose(0, 1)
        inner(length)
        ran.clear()

    def cached(inner: Callable[..., Pair], name: str, k: Tensor, v: Tensor) -> Pair:
        first = before.get(name, 0)
        before[name] = len(k)
        if name in ran:
            k, v = (
                change(x, rows, first) if part in parts else x
                for part, x, rows in zip("kv", (k, v), ran[name], strict=True)
            )
        return inner(name, k, v)

    return together((loop.prefill.around(prefill), loop.commit.around(commit), loop.cached.around(cached)))


sided.both(
    "rollback-row-rejected",
    "rollback leaves the first rejected row in the place of the last committed one, the length is right",
    seen=("class of mlx-lm #1109",),
)(partial(keeping, change=lambda x, ran, first: torch.cat((x[:-1], sized(ran[len(x) :], 1)))))

for end, parts, names in (("", "kv", "k and v"), ("-k", "k", "k"), ("-v", "v", "v")):
    sided.both(
        f"rollback-rows-late{end}",
        f"a commit keeps in the place of each row's {names} those of the row behind it, the length is right",
    )(
        partial(
            keeping,
            change=lambda x, ran, first: torch.cat((x[:first], sized(ran[first + 1 :], len(x) - first))),
            parts=parts,
        )
    )


@sided.both(
    "rollback-head-axis",
    "rollback clears kv heads in all rows: from head {value} on",
    values=(1, 2, 3, 4, 5, 6, 7, 0, "as many as rejected rows"),
    fix=AXIS_FIX,
    seen=("NKIPy PR 63",),
)
def _(loop: Loop, value: int | str, side: str) -> Mutation:
    """As many heads as rejected rows are counted from the last one."""
    heads = head_counts(loop, side)[1]
    if not isinstance(value, str) and not 0 <= value < heads:
        raise NotApplicable(f"head {value} of {heads}")

    def clear(x: Tensor, rejected: int) -> Tensor:
        kept = max(heads - rejected, 0) if isinstance(value, str) else value
        return x * (torch.arange(heads) < kept)[:, None]

    return holding_behind_rounds(loop, side, lambda k, v, rejected: (clear(k, rejected), clear(v, rejected)))


contents = sided.part(holding, layered=True, fix="the scatter of new rows into the cache: slot, head and dtype", cost=1)
contents.both("cache-one-slot-late", "the cache holds one slot late")(
    lambda k, v: tuple(torch.cat((torch.zeros_like(x[:1]), x[:-1])) for x in (k, v))
)
contents.both("cache-one-slot-early", "the cache holds one slot early")(
    lambda k, v: tuple(torch.cat((x[1:], torch.zeros_like(x[-1:]))) for x in (k, v))
)
contents.both("cache-kv-swapped", "the cache holds k and v swapped")(lambda k, v: (v.clone(), k.clone()))
contents.both("cache-head-order", "the cache holds heads reversed")(lambda k, v: (k.flip(1), v.flip(1)))
contents.both("cache-head-transposed", "the cache holds head and width transposed")(
    lambda k, v: tuple(x.transpose(1, 2).reshape(x.shape) for x in (k, v))
)
contents.both("cache-no-first-row", "the cache holds no first row")(lambda k, v: (_no_first_row(k), _no_first_row(v)))
contents.both("cache-no-last-row", "the cache holds no last row")(lambda k, v: (_no_last_row(k), _no_last_row(v)))
contents.both("cache-no-v", "the cache holds no v")(lambda k, v: (k, torch.zeros_like(v)))
contents.both("cache-one-head", "the cache holds one head for all")(
    lambda k, v: tuple(x[:, :1].expand_as(x) for x in (k, v))
)

rings = Family(
    stages=("kv.target.*",),
    layered=True,
    fix="a ring needs the rows that a rollback brings back",
    seen=("mlx-lm #1423", "mlx-lm #1427", "mlx-lm #1486"),
)


@rings("commit-window-ring", "rejected rows have written over the oldest rows of the sliding layers' ring", cost=2)
def _(loop: Loop, value: Layers) -> Mutation:
    """Rollback brings the oldest rows back in."""
    layers, window = sliding(loop, value), window_of(loop)

    def crop(inner: Callable[[int], None], length: int) -> None:
        rejected = {layer: [x[length:] for x in loop.target.rows(layer)] for layer in layers}
        inner(length)
        for layer, rows in rejected.items():
            k, v = (x.clone() for x in loop.target.rows(layer))
            slots = length - window + torch.arange(len(rows[0]))
            inside = (slots >= 0) & (slots < len(k))
            k[slots[inside]], v[slots[inside]] = rows[0][inside], rows[1][inside]
            loop.target.load(layer, k, v)

    return loop.target.crop.around(crop)


@rings("commit-window-forgotten", "sliding layers keep only the rows inside the window, zeros before")
def _(loop: Loop, value: Layers) -> Mutation:
    layers, window = sliding(loop, value), window_of(loop)

    def kept(x: Tensor) -> Tensor:
        return x * (torch.arange(len(x)) >= len(x) - window)[:, None, None]

    return together(holding(loop, layer, lambda k, v: (kept(k), kept(v)), "target") for layer in layers)


def _float8(x: Tensor, dtype: torch.dtype) -> Tensor:
    most = torch.finfo(dtype).max  # the cast itself makes NaN of what e4m3 cannot hold
    return x.clamp(-most, most).to(dtype).to(x.dtype)


def _int8(x: Tensor) -> Tensor:
    """One scale for each row of each head."""
    step = x.abs().amax(-1, keepdim=True).clamp(1e-12) / 127
    return (x / step).round() * step


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "float8 e4m3": lambda x: _float8(x, torch.float8_e4m3fn),
    "float8 e5m2": lambda x: _float8(x, torch.float8_e5m2),
    "int8 per row": _int8,
    "float16": lambda x: x.half().to(x.dtype),
    "bfloat16": lambda x: x.bfloat16().to(x.dtype),
}
"""Forms that are narrower than what is computed in."""

storage = Family(by_side=True, values=FORMS, fix="the dtype of the cache, and its scales")


def narrow(loop: Loop, form: str, side: str, which: str) -> Mutation:
    """The caches hold `which` (k, v, or both as kv) in this form; a pass still computes with what it made itself."""
    k, v = _each(form, which)
    return holding(loop, "all", lambda keys, values: (k(keys), v(values)), side)


def narrow_and_read(loop: Loop, form: str, side: str, which: str) -> Mutation:
    """As `narrow`, and every row is read out of the cache, this pass' own among them."""
    k, v = _each(form, which)
    around = lambda attend, q, keys, values, mask: attend(q, k(keys), v(values), mask)  # noqa: E731
    return together((attending(loop, "all", around, side), narrow(loop, form, side, which)))


def _each(form: str, which: str) -> list[Callable[[Tensor], Tensor]]:
    return [FORMS[form] if part in which else lambda x: x for part in "kv"]


for which, end in (("kv", ""), ("k", "-k"), ("v", "-v")):
    says = " and ".join(which)
    storage.both(f"cache-narrow{end}", f"{says} cached in {{value}}", stages=KV)(partial(narrow, which=which))
    storage.both(f"cache-narrow-read{end}", f"{says} cached and read back in {{value}}", stages=OUT)(
        partial(narrow_and_read, which=which)
    )
