"""Other rotations: another schedule, other tables, other positions, another form."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from parity.references.mutations import NotApplicable, changed, replaced, together, wrapped
from parity.references.mutations.attention import turning
from parity.references.rope import schedule


def _parameters(loop: Any, side: str) -> dict[str, Any]:
    return dict(loop.target.config.rope_parameters if side == "target" else loop.drafter.config.rope)


def _scheduled(loop: Any, side: str, rope: dict[str, Any]) -> AbstractContextManager:
    """The tables of another `rope_parameters`."""
    config = loop.target.config if side == "target" else loop.drafter.config
    frequencies, scale = schedule(rope, config.head_dim)
    held, name = _tables(loop, side)
    contexts = [replaced(held, name, scale)] if getattr(held, name) != scale else []
    buffer = held.inv_freq if side == "target" else held.frequencies
    if not torch.allclose(buffer.double(), frequencies, rtol=1e-6):
        contexts.append(changed(buffer, lambda now: frequencies.to(now.dtype)))
    return together(contexts)


def _tables(loop: Any, side: str) -> tuple[Any, str]:
    """Where the scale of cos and sin is kept."""
    return (
        (loop.target.model.model.rotary_emb, "attention_scaling") if side == "target" else (loop.drafter, "rope_scale")
    )


def parameter(loop: Any, value: Any, side: str, key: str) -> AbstractContextManager:
    """One entry of `rope_parameters` with another value."""
    rope = _parameters(loop, side)
    if key not in rope or rope[key] == value:
        raise NotApplicable(f"{key} is {rope.get(key)}")
    return _scheduled(loop, side, rope | {key: value})


def kind(loop: Any, value: str, side: str) -> AbstractContextManager:
    """Another kind of schedule with the parameters at hand."""
    rope = _parameters(loop, side)
    original = loop.target.config.max_position_embeddings
    rope = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original} | rope
    if value == "the other model's":
        return _scheduled(loop, side, _parameters(loop, "drafter" if side == "target" else "target"))
    if value == "linear":
        held = loop.target.model.model.rotary_emb.inv_freq if side == "target" else loop.drafter.frequencies
        plain, _ = schedule(rope | {"rope_type": "default"}, 2 * len(held))
        return changed(held, lambda now: (plain / float(rope.get("factor", 1.0))).to(now.dtype))
    if rope.get("rope_type", "default") == value or (value != "default" and "factor" not in rope):
        raise NotApplicable(f"rope_type {rope.get('rope_type')}")
    return _scheduled(loop, side, rope | {"rope_type": value})


def unread(loop: Any, theta: float, side: str) -> AbstractContextManager:
    """The rope key is not read at all: no scaling, and a theta out of the code."""
    return _scheduled(loop, side, {"rope_type": "default", "rope_theta": theta})


def factor_alone(loop: Any, factor: float, side: str) -> AbstractContextManager:
    """YaRN's factor is another one in the frequencies; cos and sin keep the scale of the true one."""
    rope, (held, name) = _parameters(loop, side), _tables(loop, side)
    if rope.get("rope_type") != "yarn" or rope["factor"] == factor:
        raise NotApplicable(f"rope_type {rope.get('rope_type')}, factor {rope.get('factor')}")
    return _scheduled(loop, side, rope | {"factor": factor, "attention_factor": getattr(held, name)})


def rounded(loop: Any, what: str, side: str, dtype: str) -> AbstractContextManager:
    """The frequencies, the angles (position x frequency), or both and the positions, rounded on their way to cos and sin."""
    held, name = _tables(loop, side)
    buffer = held.inv_freq if side == "target" else held.frequencies
    through = lambda x: x.to(getattr(torch, dtype))  # noqa: E731
    if what == "frequencies":
        return changed(buffer, lambda now: through(now).to(now.dtype))

    def angles(positions: torch.Tensor) -> torch.Tensor:
        exact = what == "angles"
        places, frequencies = (x.float() if exact else through(x).float() for x in (positions, buffer))
        return through(places[..., None] * frequencies).float()

    if side == "drafter":
        around = lambda inner, positions: _table(angles(positions)[:, :, None], getattr(held, name), torch.float32)  # noqa: E731
        return wrapped(loop.drafter, "tables", around)
    around = lambda inner, x, position_ids: _table(angles(position_ids), getattr(held, name), x.dtype)  # noqa: E731
    return wrapped(held, "forward", around)


def _table(angle: torch.Tensor, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return (angle.cos() * scale).to(dtype), (angle.sin() * scale).to(dtype)


def concentrated(loop: Any, value: float | str, side: str) -> AbstractContextManager:
    """cos and sin with another scale: without YaRN's, with it twice, with it where there is none, times a factor."""
    held, name = _tables(loop, side)
    clean, factor = getattr(held, name), float(_parameters(loop, side).get("factor", 1.0))
    yarn = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    known = {"missing": 1.0, "squared": clean**2, "applied": yarn, "inverted": 1 / clean}
    scale = known.get(value, value if isinstance(value, str) else clean * value)
    if math.isclose(scale, clean):
        raise NotApplicable(f"cos and sin are scaled by {clean:g}")
    return replaced(held, name, scale)


def _plain(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without the concentration: the length that cos and sin have together."""
    length = torch.sqrt(cos.float().square() + sin.float().square())
    return (cos / length).to(cos.dtype), (sin / length).to(sin.dtype)


def form(loop: Any, value: Any, side: str, how: str) -> AbstractContextManager:
    """Another rotation with the right tables."""

    def pairs(x):
        return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)

    def halves(x):
        return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)

    around = {
        "interleaved": lambda turn, q, k, cos, sin: tuple(map(halves, turn(pairs(q), pairs(k), cos, sin))),
        "backwards": lambda turn, q, k, cos, sin: turn(q, k, cos, -sin),
        "not q": lambda turn, q, k, cos, sin: (q, turn(q, k, cos, sin)[1]),
        "not k": lambda turn, q, k, cos, sin: (turn(q, k, cos, sin)[0], k),
        "neither": lambda turn, q, k, cos, sin: (q, k),
        "twice": lambda turn, q, k, cos, sin: turn(*turn(q, k, cos, sin), cos, sin),
        "q unscaled": lambda turn, q, k, cos, sin: (turn(q, k, *_plain(cos, sin))[0], turn(q, k, cos, sin)[1]),
        "k unscaled": lambda turn, q, k, cos, sin: (turn(q, k, cos, sin)[0], turn(q, k, *_plain(cos, sin))[1]),
        "cos and sin swapped": lambda turn, q, k, cos, sin: turn(q, k, sin, cos),
        "table in bfloat16": lambda turn, q, k, cos, sin: turn(
            q, k, cos.bfloat16().to(cos.dtype), sin.bfloat16().to(sin.dtype)
        ),
    }[how]
    return turning(loop, value, side, around)


def _placed(loop: Any, side: str, move: Callable[[torch.Tensor], torch.Tensor]) -> AbstractContextManager:
    """Tables for other positions [B, S] than the rows'."""
    if side == "target":
        around = lambda inner, x, position_ids: inner(x, move(position_ids))  # noqa: E731
        return wrapped(loop.target.model.model.rotary_emb, "forward", around)
    return wrapped(loop.drafter, "tables", lambda inner, positions: inner(move(positions)))


def positions(loop: Any, value: float | str, side: str) -> AbstractContextManager:
    """Rotation by position + `value`, by the place in this pass, or by the last row's position."""
    move = {
        "the place in its pass": lambda p: torch.arange(p.shape[1])[None],
        "the sequence length": lambda p: p[:, -1:].expand(p.shape) + 1,
        "rounded to bfloat16": lambda p: p.bfloat16().long(),
    }.get(value, lambda p: p + value)
    return _placed(loop, side, move)


def verify_positions(loop: Any, delta: int) -> AbstractContextManager:
    """The target's rows of a verify round rotate by positions `delta` off."""
    return _placed(loop, "target", lambda p: p + delta if loop.length else p)


def overflowing(loop: Any, how: str, side: str) -> AbstractContextManager:
    """A table that ends at the original context: positions behind it clamp or wrap."""
    original = _parameters(loop, side).get("original_max_position_embeddings")
    if not original:
        raise NotApplicable("no original context")
    change = {"clamp": lambda p: p.clamp(max=original - 1), "wrap": lambda p: p % original}[how]
    return _placed(loop, side, change)
