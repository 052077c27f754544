"""Synthetic tensors: a float32 truth, its bfloat16 floor, and a clean device that rounds on its own.

One layer of a decoder and a drafter's fuse and head, small, untrained, but computed: the noise is that of
real rounding, and the floor and the device round at different places (the device adds its sums in two
halves and keeps the activation in float32).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from parity.compare.scores import scores_of
from parity.stages import declared
from parity.trace import Tensors

H, N, G, D, E, X, K, V, VD = 64, 4, 2, 16, 8, 2, 4, 1000, 600
INTERMEDIATE = 96
ACCEPTED = (2, 3, 1)
OFFSET = 300
"""Draft column 0 is this token of the target."""
NAMES = declared(2, 1)
STAGES = (
    *(f"target.layers.0.{part}" for part in ("attn_in", "q", "k", "router_logits", "experts", "ffn_out", "out")),
    *("target.embed", "target.pre_head_hidden", "target.logits", "target.tokens", "verify.logits", "verify.tokens"),
    *("drafter.positions", "drafter.slots", "drafter.fc_out", "drafter.logits", "drafter.draft_tokens"),
    *("accept.length", "accept.emitted", "kv.target.0.k", "kv.target.length"),
)

Rounding = Callable[[np.ndarray], np.ndarray]


def bfloat16(x: np.ndarray) -> np.ndarray:
    """One rounding to bfloat16, as float32."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@dataclass(frozen=True)
class Arithmetic:
    """How one side computes: `store` rounds a stage, `inner` an activation between two, `halves` adds sums."""

    store: Rounding = lambda x: x
    inner: Rounding = lambda x: x
    halves: bool = False

    def matmul(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """x @ w, rounded."""
        if not self.halves:
            return self.store(x @ w)
        middle = x.shape[1] // 2
        return self.store(self.store(x[:, :middle] @ w[:middle]) + x[:, middle:] @ w[middle:])


TRUTH = Arithmetic()
FLOOR = Arithmetic(store=bfloat16, inner=bfloat16)
DEVICE = Arithmetic(store=bfloat16, halves=True)


@dataclass(frozen=True)
class Size:
    """Prompt lengths, vocabulary and stages of a world."""

    prompts: tuple[int, ...] = (150, 50)
    vocab: int = V
    rounds: int = len(ACCEPTED)
    stages: tuple[str, ...] = STAGES


SHORT, LONG = Size(), Size(prompts=(1800, 200), rounds=0, stages=("target.embed", *STAGES[:3]))
WIDE = Size(prompts=(1,), vocab=200_000, rounds=0, stages=("target.pre_head_hidden", "target.logits", "target.tokens"))


def weights(size: Size) -> dict[str, np.ndarray]:
    """bfloat16 weights in x @ W form."""
    rng = np.random.default_rng(7)
    shapes = dict(q=(H, N * D), k=(H, G * D), router=(H, E), up=(H, INTERMEDIATE), down=(INTERMEDIATE, H))
    shapes |= dict(head=(H, size.vocab), fc=(2 * H, H), draft=(H, VD))
    normal = {name: rng.normal(size=shape).astype(np.float32) / np.sqrt(shape[0]) for name, shape in shapes.items()}
    if size.vocab == V:  # the target chooses tokens that can be drafted
        normal["head"][:, [*range(OFFSET), *range(OFFSET + VD - 1, V)]] /= 8
    made = {name: bfloat16(w) for name, w in normal.items()}
    return made | {"embed": bfloat16(rng.normal(size=(5000, H)).astype(np.float32))}


def norm(x: np.ndarray, how: Arithmetic) -> np.ndarray:
    """RMS norm."""
    return how.store(x / np.sqrt((x * x).mean(axis=1, keepdims=True)))


def target(ids: np.ndarray, w, how: Arithmetic, head: int) -> dict[str, np.ndarray]:
    """The target's stages over these tokens; logits of the last `head` rows."""
    embed = w["embed"][ids]
    attn_in = norm(embed, how)
    q, k = (how.matmul(attn_in, w[name]) for name in "qk")
    router = how.matmul(attn_in, w["router"])
    ffn = how.matmul(how.inner(np.maximum(attn_in @ w["up"], 0)), w["down"])
    out = how.store(embed + ffn)
    hidden = norm(out, how)
    experts = np.sort(np.argsort(-router, axis=1)[:, :X], axis=1)
    layer = dict(attn_in=attn_in, q=q.reshape(-1, N, D), k=k.reshape(-1, G, D), router_logits=router, experts=experts)
    found = {f"target.layers.0.{name}": value for name, value in (layer | dict(ffn_out=ffn, out=out)).items()}
    found |= {"target.embed": embed, "target.pre_head_hidden": hidden}
    return found | {"logits": how.matmul(hidden[-head:], w["head"])}


def prompt(ids: np.ndarray, w, how: Arithmetic, size: Size) -> Tensors:
    """All rounds of one prompt."""
    found: Tensors = {}
    cache_rows = np.empty((0, G, D), np.float32)
    length = len(ids)
    for round_ in range(size.rounds + 1):
        tokens = ids if round_ == 0 else (ids[: K + 1] * 31 + 17 * round_) % 5000
        seen = target(tokens, w, how, head=len(tokens))
        logits = seen.pop("logits")
        emitted = length if round_ == 0 else ACCEPTED[round_ - 1]
        cache_rows = np.concatenate([cache_rows, seen["target.layers.0.k"][:emitted]])
        side = "target" if round_ == 0 else "verify"
        seen |= {f"{side}.logits": logits, f"{side}.tokens": logits.argmax(axis=1), "kv.target.0.k": cache_rows}
        seen["kv.target.length"] = np.array([len(cache_rows)])
        seen |= drafter(seen, w, how, round_, len(cache_rows))
        found |= {(round_, name): value for name, value in seen.items() if name in size.stages}
    return found


def drafter(seen, w, how: Arithmetic, round_: int, length: int) -> dict[str, np.ndarray]:
    """The drafter's and the acceptance's stages of a round."""
    rows = np.concatenate([seen["target.embed"], seen["target.layers.0.out"]], axis=1)
    committed = (1, *ACCEPTED)[round_ - 1] if round_ else len(rows) - 1
    due = committed + K - 1 if round_ else committed
    fc_out = how.matmul(np.concatenate([rows, rows[::-1]])[:due], w["fc"])
    places = np.arange(len(fc_out)) + length
    made = {"drafter.fc_out": fc_out, "drafter.positions": places, "drafter.slots": places}
    if round_ == 0:
        return made
    logits = how.matmul(norm(fc_out[:K], how), w["draft"])
    count, tokens = ACCEPTED[round_ - 1], seen["verify.tokens"]
    for row in range(min(count, K)):  # accepted drafts are the target's tokens, the one behind them is not
        column = tokens[row] - OFFSET + (row == count - 1)
        logits[row, column] = how.store(logits[row].max(keepdims=True) + 1)[0]
    made |= {"drafter.logits": logits, "drafter.draft_tokens": logits.argmax(axis=1) + OFFSET}
    return made | {"accept.length": np.array([count]), "accept.emitted": tokens[:count]}


@cache
def made(size: Size) -> tuple[dict[str, list[Tensors]], list[Tensors]]:
    """Golden variants and the clean run; choices are the run's own, and the golden's are what continues."""
    w, rng = weights(size), np.random.default_rng(11)
    ids = [rng.integers(0, 5000, count) for count in size.prompts]
    truth, floor, device = ([prompt(one, w, how, size) for one in ids] for how in (TRUTH, FLOOR, DEVICE))
    for true, *others in zip(truth, floor, device, strict=True):
        for place in (place for place in true if NAMES[place[1]].stage.exact and not scores_of(place[1])):
            for other in others:
                other[place] = true[place]
    return {"float32": truth, "bfloat16": [_approximate(one) for one in floor]}, [_stored(one) for one in device]


def _approximate(tensors: Tensors) -> Tensors:
    """A floor holds approximate stages only."""
    return _stored({place: value for place, value in tensors.items() if not NAMES[place[1]].stage.exact})


def _stored(tensors: Tensors) -> Tensors:
    """Floats as bfloat16."""
    half = ml_dtypes.bfloat16
    return {place: value.astype(half) if value.dtype == np.float32 else value for place, value in tensors.items()}
