"""Other rotations: another schedule, other tables, other positions, another form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from parity.references.hypotheses.catalogue import SIDES, Family, Fit, Mutation
from parity.references.hypotheses.inference import TableEnd
from parity.references.hypotheses.lazily import Loop, Tensor, rope, torch
from parity.references.hypotheses.masks import KEYS, MOVED, QUERIES, TABLE, turning
from parity.references.hypotheses.mutating import NotApplicable, changed, together, weighted
from parity.references.points import foreign, replaced

ROPE_FIX = {
    "target": "rope_parameters of the target's config",
    "drafter": "rope_scaling and rope_theta of the drafter's config",
}
FORM_FIX = "rotation is half-split, by the row's own position, on q and k alike"

READ = "{side}.rope_parameters"
"""Where a golden records what was read of config.json, see `Fit.constant`."""

schedules = Family(stages=TABLE, fix=ROPE_FIX)
tables = Family(stages=MOVED)
forms = Family(turning, stages=MOVED, layered=True, fix=FORM_FIX)


def parameters_of(loop: Loop, side: str) -> dict[str, Any]:
    """What the config of a side's model says of its rotary embedding."""
    return dict((loop.target.config.rope_parameters or {}) if side == "target" else weighted(loop).config.rope)


def _scale(loop: Loop, side: str) -> tuple[Any, str]:
    """Where the scale of cos and sin is kept: an object and a name."""
    return (
        (loop.target.model.model.rotary_emb, "attention_scaling") if side == "target" else (loop.drafter, "rope_scale")
    )


def frequencies_of(loop: Loop, side: str) -> Tensor:
    """The buffer of a side's frequencies [D / 2]."""
    frequencies: Tensor = loop.target.model.model.rotary_emb.inv_freq if side == "target" else loop.drafter.frequencies
    return frequencies


def _scheduled(loop: Loop, side: str, parameters: dict[str, Any]) -> Mutation:
    """The tables of another `rope_parameters`."""
    config = loop.target.config if side == "target" else loop.drafter.config
    frequencies, scale = rope.schedule(parameters, config.head_dim)
    owner, name = _scale(loop, side)
    contexts = [replaced(owner, name, scale)] if getattr(owner, name) != scale else []
    buffer = frequencies_of(loop, side)
    if not torch.allclose(buffer.double(), frequencies, rtol=1e-6):
        contexts.append(changed(buffer, lambda now: frequencies.to(now.dtype)))
    return together(contexts)


@schedules.both(
    "rope-silent-fallback",
    "rotation uses the schedule {value}",
    values=("default", "llama3", "yarn", "linear", "the other model's"),
    seen=("NeMo Automodel #2825", "TensorRT-Model-Connect #400"),
)
def _(loop: Loop, value: str, side: str) -> Mutation:
    parameters = parameters_of(loop, side)
    original = loop.target.config.max_position_embeddings
    assumed = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": original}
    parameters = assumed | parameters
    if value == "the other model's":
        return _scheduled(loop, side, parameters_of(loop, "drafter" if side == "target" else "target"))
    if value == "linear":
        buffer = frequencies_of(loop, side)
        plain, _ = rope.schedule(parameters | {"rope_type": "default"}, 2 * len(buffer))
        return changed(buffer, lambda now: (plain / float(parameters.get("factor", 1.0))).to(now.dtype))
    if parameters.get("rope_type", "default") == value or (value != "default" and "factor" not in parameters):
        raise NotApplicable(f"rope_type {parameters.get('rope_type')}")
    return _scheduled(loop, side, parameters | {"rope_type": value})


def parameter(loop: Loop, value: float | bool, side: str, key: str) -> Mutation:
    """One entry of `rope_parameters` with another value."""
    parameters = parameters_of(loop, side)
    if key not in parameters or parameters[key] == value:
        raise NotApplicable(f"{key} is {parameters.get(key)}")
    return _scheduled(loop, side, parameters | {key: value})


WIDE = Fit(1.0, 128.0, clean=None, log=True, constant=f"{READ}.factor")
LENGTHS = Fit(16, 262144, clean=None, log=True, whole=True)
NEAR = partial(Fit, 0.1, 128.0, log=True)
THETA = Fit(1e3, 1e7, clean=None, log=True)

for id, key, values, fit, sides in (
    ("theta", "rope_theta", (10000.0, 150000.0, 500000.0, 1e6), THETA, "both"),
    ("factor", "factor", (1.0, 32.0, 8.0, 4.0), WIDE, "both"),
    ("original-context", "original_max_position_embeddings", (4096, 8192, 131072, 2048), LENGTHS, "both"),
    ("beta-fast", "beta_fast", (16.0, 64.0), NEAR(clean=32.0), "target"),
    ("beta-slow", "beta_slow", (2.0, 0.5), NEAR(clean=1.0), "target"),
    ("low-freq-factor", "low_freq_factor", (2.0, 0.5), NEAR(clean=1.0), "drafter"),
    ("high-freq-factor", "high_freq_factor", (2.0, 8.0), NEAR(clean=4.0), "drafter"),
):
    on = ("target", "drafter") if sides == "both" else (sides,)
    declared = schedules.both(
        f"rope-{id}", f"{key} is {{value:g}}", sides=on, values=values, fit=replace(fit, constant=f"{READ}.{key}")
    )
    declared(partial(parameter, key=key))

schedules.both(
    "rope-truncated",
    "YaRN's ramp bounds are rounded to whole dimensions (truncate {value})",
    sides=("target",),
    values=(True, False),
)(partial(parameter, key="truncate"))


@schedules.both(
    "rope-key-ignored",
    "no RoPE scaling is read at all, and theta is {value:g}",
    values=(10000.0, 500000.0, 150000.0, 1e6),
    fix="both spellings: rope_parameters and rope_scaling with rope_theta beside it",
    seen=("TensorRT-Model-Connect #400",),
)
def _(loop: Loop, theta: float, side: str) -> Mutation:
    return _scheduled(loop, side, {"rope_type": "default", "rope_theta": theta})


@schedules.both(
    "rope-factor-alone",
    "YaRN's factor is {value:g} in the frequencies; cos and sin have the scale of the true one",
    sides=("target",),
    values=(1.0, 32.0, 16.0, 8.0, 4.0, 2.0),
    fit=WIDE,
)
def _(loop: Loop, factor: float, side: str) -> Mutation:
    parameters = parameters_of(loop, side)
    if parameters.get("rope_type") != "yarn" or parameters["factor"] == factor:
        raise NotApplicable(f"rope_type {parameters.get('rope_type')}, factor {parameters.get('factor')}")
    return _scheduled(loop, side, parameters | {"factor": factor, "attention_factor": getattr(*_scale(loop, side))})


def rounded(loop: Loop, what: str, side: str, dtype: str) -> Mutation:
    """Frequencies, angles (position x frequency), or both and the positions, rounded on their way to cos and sin."""
    buffer = frequencies_of(loop, side)

    def through(x: Tensor) -> Tensor:
        return x.to(getattr(torch, dtype))

    if what == "frequencies":
        return changed(buffer, lambda now: through(now).to(now.dtype))

    def table(positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        places, frequencies = (x.float() if what == "angles" else through(x).float() for x in (positions, buffer))
        angle, scale = through(places[..., None] * frequencies).float(), getattr(*_scale(loop, side))
        return (angle.cos() * scale).to(dtype), (angle.sin() * scale).to(dtype)

    if side == "drafter":
        return loop.drafter.tables.around(lambda inner, positions: table(positions[:, :, None], torch.float32))
    embedding = foreign(loop.target.model.model.rotary_emb, "forward")
    return embedding.around(lambda inner, x, position_ids: table(position_ids, x.dtype))


for dtype in ("bfloat16", "float16"):
    tables.both(
        f"rope-precision-{dtype}",
        f"{{value}} of the rotation in {dtype}",
        values=("angles", "frequencies", "positions, frequencies and angles"),
        fix="angles in float32, from integer positions and float32 frequencies",
    )(partial(rounded, dtype=dtype))


@tables.both(
    "rope-concentration",
    "the scale of cos and sin is {value} (a number: times as large)",
    stages=TABLE,
    values=("missing", "squared", "applied", "inverted"),
    fit=Fit(0.5, 2.0, clean=1.0),
    fix="cos and sin are both scaled by 0.1 ln(factor) + 1 under YaRN, and by nothing under llama3",
    seen=("kekzl/imp #584",),
)
def _(loop: Loop, value: float | str, side: str) -> Mutation:
    owner, name = _scale(loop, side)
    clean, factor = float(getattr(owner, name)), float(parameters_of(loop, side).get("factor", 1.0))
    yarn = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    known = {"missing": 1.0, "squared": clean**2, "applied": yarn, "inverted": 1 / clean}
    scale = known[value] if isinstance(value, str) else clean * value
    if math.isclose(scale, clean):
        raise NotApplicable(f"cos and sin are scaled by {clean:g}")
    return replaced(owner, name, scale)


def at_positions(loop: Loop, side: str, move: Callable[[Tensor], Tensor]) -> Mutation:
    """Tables for other positions [B, S] than the rows'."""
    if side == "target":
        embedding = foreign(loop.target.model.model.rotary_emb, "forward")
        return embedding.around(lambda inner, x, position_ids: inner(x, move(position_ids)))
    return loop.drafter.tables.around(lambda inner, positions: inner(move(positions)))


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "the place in its pass": lambda p: torch.arange(p.shape[1])[None],
    "the sequence length": lambda p: p[:, -1:].expand(p.shape) + 1,
    "rounded to bfloat16": lambda p: p.bfloat16().long(),
}


def placed(loop: Loop, value: float | str, side: str) -> Mutation:
    """Rotation by position + `value`, or by another position of the same row."""
    return at_positions(loop, side, PLACES[value] if isinstance(value, str) else lambda p: p + value)


tables.both(
    "rope-position",
    "rotation by a position {value} (a number: so many off)",
    values=(1, -1),
    fit=Fit(-64, 64, clean=0, whole=True),
    fix=FORM_FIX,
)(placed)


@tables(
    "verify-position",
    "target: the rows of a verify round rotate by a position {value:+d} off",
    values=(1, -1, 2, -2),
    fit=Fit(-64, 64, clean=0, whole=True),
    fix="the first position of a verify round: the length of the target's cache",
    cost=2,
)
def _(loop: Loop, delta: int) -> Mutation:
    return at_positions(loop, "target", lambda p: p + delta if loop.state.length else p)


def _plain(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Without the concentration: the length that cos and sin have together."""
    length = torch.sqrt(cos.float().square() + sin.float().square())
    return (cos / length).to(cos.dtype), (sin / length).to(sin.dtype)


parts = Family(
    turning, layered=True, fix="cos and sin are scaled, so that q and k both are", seen=("class of kekzl/imp #584",)
)
UNSCALED = "target: {} is not scaled by the YaRN concentration, the other one is"
parts("rope-concentration-q", UNSCALED.format("q"), stages=MOVED)(
    lambda turn, q, k, cos, sin: (turn(q, k, *_plain(cos, sin))[0], turn(q, k, cos, sin)[1])
)
parts("rope-concentration-k", UNSCALED.format("k"), stages=KEYS)(
    lambda turn, q, k, cos, sin: (turn(q, k, cos, sin)[0], turn(q, k, *_plain(cos, sin))[1])
)

late = Family(stages=MOVED)
late.both(
    "rope-length-not-position",
    "rotation by {value} instead of the row's position",
    values=("the place in its pass", "the sequence length"),
    fix="the rotary embedding takes the positions it is given",
    seen=("Automodel #2377",),
    cost=2,
)(placed)
late.both(
    "rope-position-rounded",
    "positions are {value} before they rotate",
    values=("rounded to bfloat16",),
    fix="angles in float32, from integer positions",
)(placed)


def _of_length(loop: Loop, rows: int, side: str, beyond: Callable[[Tensor, int], Tensor]) -> Mutation:
    if rows < 1:
        raise NotApplicable("no row")
    return at_positions(loop, side, lambda p: beyond(p, rows))


@late.both(
    "rope-table-overflow",
    "rotation tables end at the original context: positions behind it {value}",
    stages=TABLE,
    values=("clamp", "wrap"),
    fix="the length of the cos and sin tables",
    seen=("vLLM #48894", "vLLM #49343"),
)
def _(loop: Loop, how: str, side: str) -> Mutation:
    original = parameters_of(loop, side).get("original_max_position_embeddings")
    if not original:
        raise NotApplicable("no original context")
    return at_positions(loop, side, lambda p: p.clamp(max=original - 1) if how == "clamp" else p % original)


for end, how, beyond in (
    ("short", "take the last one", lambda p, rows: p.clamp(max=rows - 1)),
    ("begun-anew", "begin anew", lambda p, rows: p % rows),
):
    late.both(
        f"rope-table-{end}",
        f"rotation tables have {{value}} rows: positions behind them {how}",
        stages=TABLE,
        values=(),
        infer={side: TableEnd(side) for side in SIDES},
        fix="the length of the cos and sin tables",
        seen=("vLLM #48894", "vLLM #49343"),
    )(partial(_of_length, beyond=beyond))


def _pairs(x: Tensor) -> Tensor:
    parts: Tensor = x.unflatten(-1, (-1, 2))
    return parts.transpose(-1, -2).flatten(-2)


def _halves(x: Tensor) -> Tensor:
    parts: Tensor = x.unflatten(-1, (2, -1))
    return parts.transpose(-1, -2).flatten(-2)


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def _in_place(turn: Callable[..., Any], q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, which: str, first: bool) -> Any:
    """One half (`first` or the other) is written before the other one reads it."""
    made, was = turn(q, k, cos, sin), (q, k)
    apart = [(new - old).chunk(2, -1) for new, old in zip(made, was, strict=True)]
    moved = [torch.cat((one, other * 0) if first else (one * 0, other), -1) for one, other in apart]
    added = [one.chunk(2, -1) for one in turn(moved[0], moved[1], cos, sin)]
    more = [torch.cat((one * 0, other) if first else (one, other * 0), -1) for one, other in added]
    return tuple(one + other if name in which else one for name, one, other in zip("qk", made, more, strict=True))


for end, which, names, stages in (
    ("", "qk", "queries and keys", MOVED),
    ("-q", "q", "queries", QUERIES),
    ("-k", "k", "keys", KEYS),
):
    for back, one, other in (("", "second", "first"), ("-back", "first", "second")):
        forms.both(
            f"rope-in-place{back}{end}",
            f"rotation of {names} in place: the {one} half turns with the {other} half's new values",
            stages=stages,
        )(partial(_in_place, which=which, first=one == "second"))

forms.both("rope-interleaved", "rotation, interleaved", seen=("TRT-LLM #19036",))(
    lambda turn, q, k, cos, sin: tuple(map(_halves, turn(_pairs(q), _pairs(k), cos, sin)))
)
forms.both("rope-backwards", "rotation, backwards")(lambda turn, q, k, cos, sin: turn(q, k, cos, -sin))
forms.both("rope-missing-q", "rotation, not q", stages=QUERIES)(
    lambda turn, q, k, cos, sin: (q, turn(q, k, cos, sin)[1])
)
forms.both("rope-missing-k", "rotation, not k", stages=KEYS)(lambda turn, q, k, cos, sin: (turn(q, k, cos, sin)[0], k))
forms.both("rope-missing", "rotation, neither")(lambda turn, q, k, cos, sin: (q, k))
forms.both("rope-twice", "rotation, twice")(lambda turn, q, k, cos, sin: turn(*turn(q, k, cos, sin), cos, sin))
forms.both("rope-cos-sin-swapped", "rotation, cos and sin swapped")(lambda turn, q, k, cos, sin: turn(q, k, sin, cos))
forms.both("rope-table-bf16", "rotation, table in bfloat16", seen=("NKIPy example",))(
    lambda turn, q, k, cos, sin: turn(q, k, _bf16(cos), _bf16(sin))
)
