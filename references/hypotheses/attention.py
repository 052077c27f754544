"""Attention and rotation, on either side; an id that ends in `-drafter` is the drafter's."""

from __future__ import annotations

from functools import partial

from parity.references.hypotheses.catalogue import Fit, Hypothesis, Mutations

attention, rope = Mutations("attention"), Mutations("rope")

FACTOR = Fit(0.1, 10.0, clean=1.0, log=True)
ROPE_FIX = {
    "target": "rope_parameters of the target's config",
    "drafter": "rope_scaling and rope_theta of the drafter's config",
}
FORM_FIX = "rotation is half-split, by the row's own position, on q and k alike"
MASK_FIX = "the mask's bounds: key allowed when 0 <= q - k, and q - k < window in sliding layers"
TABLE = {"target": ("target.layers.*.q",), "drafter": ("drafter.layers.*.attn_out",)}
KEYS = {"target": ("target.layers.*.k",), "drafter": ("drafter.layers.*.attn_out",)}
MOVED = {"target": ("target.layers.*.q",), "drafter": ("drafter.layers.*.attn_out", "kv.drafter.*.k")}
OUT = {"target": ("target.layers.*.attn_out",), "drafter": ("drafter.layers.*.attn_out",)}


def both_sides(id_, says, stages, apply, sides=("target", "drafter"), **rest):
    """The same hypothesis on the target and on the drafter."""
    for side in sides:
        suffix = "" if side == "target" else "-drafter"
        fix = rest.get("fix", "")
        more = rest | {"fix": fix[side] if isinstance(fix, dict) else fix}
        yield Hypothesis(f"{id_}{suffix}", f"{side}: {says}", stages[side], partial(apply, side=side), **more)


def _rope():
    yield from both_sides(
        "rope-silent-fallback",
        "rotation uses the schedule {value}",
        TABLE,
        rope.kind,
        values=("default", "llama3", "yarn", "linear", "the other model's"),
        fix=ROPE_FIX,
        seen=("NeMo Automodel #2825", "TensorRT-Model-Connect #400"),
    )
    for id_, key, values, fit in (
        ("rope-theta", "rope_theta", (10000.0, 150000.0, 500000.0, 1e6), Fit(1e3, 1e7, clean=None, log=True)),
        ("rope-factor", "factor", (1.0, 32.0, 8.0, 4.0), Fit(1.0, 128.0, clean=None, log=True)),
        (
            "rope-original-context",
            "original_max_position_embeddings",
            (4096, 8192, 131072, 2048),
            Fit(16, 262144, clean=None, log=True, whole=True),
        ),
    ):
        says = f"{key} is {{value:g}}"
        yield from both_sides(id_, says, TABLE, partial(rope.parameter, key=key), values=values, fit=fit, fix=ROPE_FIX)
    for key, side, clean, values in (
        ("beta_fast", "target", 32.0, (16.0, 64.0)),
        ("beta_slow", "target", 1.0, (2.0, 0.5)),
        ("low_freq_factor", "drafter", 1.0, (2.0, 0.5)),
        ("high_freq_factor", "drafter", 4.0, (2.0, 8.0)),
    ):
        fit = Fit(0.1, 128.0, clean=clean, log=True)
        apply = partial(rope.parameter, key=key)
        says = f"{key} is {{value:g}}"
        id_ = f"rope-{key.replace('_', '-')}"
        yield from both_sides(id_, says, TABLE, apply, sides=(side,), values=values, fit=fit, fix=ROPE_FIX)
    yield from both_sides(
        "rope-truncated",
        "YaRN's ramp bounds are rounded to whole dimensions (truncate {value})",
        TABLE,
        partial(rope.parameter, key="truncate"),
        sides=("target",),
        values=(True, False),
        fix=ROPE_FIX,
    )
    yield from both_sides(
        "rope-key-ignored",
        "no RoPE scaling is read at all, and theta is {value:g}",
        TABLE,
        rope.unread,
        values=(10000.0, 500000.0, 150000.0, 1e6),
        fix="both spellings: rope_parameters and rope_scaling with rope_theta beside it",
        seen=("TensorRT-Model-Connect #400",),
    )
    yield from both_sides(
        "rope-factor-alone",
        "YaRN's factor is {value:g} in the frequencies; cos and sin have the scale of the true one",
        TABLE,
        rope.factor_alone,
        sides=("target",),
        values=(1.0, 32.0, 16.0, 8.0, 4.0, 2.0),
        fit=Fit(1.0, 128.0, clean=None, log=True),
        fix=ROPE_FIX,
    )
    for dtype in ("bfloat16", "float16"):
        yield from both_sides(
            f"rope-precision-{dtype}",
            f"{{value}} of the rotation in {dtype}",
            MOVED,
            partial(rope.rounded, dtype=dtype),
            values=("angles", "frequencies", "positions, frequencies and angles"),
            fix="angles in float32, from integer positions and float32 frequencies",
        )
    yield from both_sides(
        "rope-concentration",
        "the scale of cos and sin is {value} (a number: times as large)",
        TABLE,
        rope.concentrated,
        values=("missing", "squared", "applied", "inverted"),
        fit=Fit(0.5, 2.0, clean=1.0),
        fix="cos and sin are both scaled by 0.1 ln(factor) + 1 under YaRN, and by nothing under llama3",
        seen=("kekzl/imp #584",),
    )
    yield from both_sides(
        "rope-position",
        "rotation by a position {value} (a number: so many off)",
        MOVED,
        rope.positions,
        values=(1, -1),
        fit=Fit(-64, 64, clean=0, whole=True),
        fix=FORM_FIX,
    )
    yield Hypothesis(
        "verify-position",
        "target: the rows of a verify round rotate by a position {value:+d} off",
        MOVED["target"],
        rope.verify_positions,
        values=(1, -1),
        fix="the first position of a verify round: the length of the target's cache",
        cost=2,
    )
    for part, stages in (("q", MOVED), ("k", KEYS)):
        yield Hypothesis(
            f"rope-concentration-{part}",
            f"target: {part} is not scaled by the YaRN concentration, the other one is",
            stages["target"],
            partial(rope.form, side="target", how=f"{part} unscaled"),
            values=("all",),
            layered=True,
            fix="cos and sin are scaled, so that q and k both are",
            seen=("class of kekzl/imp #584",),
        )
    yield from both_sides(
        "rope-length-not-position",
        "rotation by {value} instead of the row's position",
        MOVED,
        rope.positions,
        values=("the place in its pass", "the sequence length"),
        fix="the rotary embedding takes the positions it is given",
        seen=("Automodel #2377",),
        cost=2,
    )
    yield from both_sides(
        "rope-position-rounded",
        "positions are {value} before they rotate",
        MOVED,
        rope.positions,
        values=("rounded to bfloat16",),
        fix="angles in float32, from integer positions",
    )
    yield from both_sides(
        "rope-table-overflow",
        "rotation tables end at the original context: positions behind it {value}",
        TABLE,
        rope.overflowing,
        values=("clamp", "wrap"),
        fix="the length of the cos and sin tables",
        seen=("vLLM #48894", "vLLM #49343"),
    )
    for id_, how, stages in (
        ("rope-interleaved", "interleaved", MOVED),
        ("rope-backwards", "backwards", MOVED),
        ("rope-missing-q", "not q", TABLE),
        ("rope-missing-k", "not k", KEYS),
        ("rope-missing", "neither", MOVED),
        ("rope-twice", "twice", MOVED),
        ("rope-cos-sin-swapped", "cos and sin swapped", MOVED),
        ("rope-table-bf16", "table in bfloat16", MOVED),
    ):
        seen = {"rope-interleaved": ("TRT-LLM #19036",), "rope-table-bf16": ("NKIPy example",)}.get(id_, ())
        says = f"rotation, {how}"
        apply = partial(rope.form, how=how)
        yield from both_sides(id_, says, stages, apply, values=("all",), layered=True, fix=FORM_FIX, seen=seen)


def _masks():
    layered = dict(values=("all",), layered=True, fix=MASK_FIX)
    for id_, what, cost in (
        ("attn-causal-next-row", "the next row", 1),
        ("attn-causal-missing", "all rows", 1),
        ("attn-causal-not-itself", "not itself", 1),
        ("attn-mask-no-offset", "no cache offset", 2),
        ("attn-cache-ignored", "only its own pass", 2),
        ("attn-first-row-hidden", "not the first row", 1),
    ):
        says = {
            "no cache offset": "the causal mask does not count the cached rows",
            "not itself": "a row does not see itself",
            "not the first row": "the first row of the sequence is not seen",
        }.get(what, f"a row sees {what}")
        yield from both_sides(id_, says, OUT, partial(attention.sees, what=what), cost=cost, **layered)
    out = OUT["target"]
    for suffix, what, says in (
        ("", "the drafts behind it", "see the drafts behind them"),
        ("-last-mask", "what the last one of a verify pass does", "all see what the last one sees"),
    ):
        yield Hypothesis(
            f"verify-rows-bidirectional{suffix}",
            f"target: the rows of a verify pass {says}",
            out,
            partial(attention.sees, side="target", what=what),
            cost=2,
            **layered,
        )
    yield Hypothesis(
        "attn-window-missing",
        "target: the sliding window is not applied",
        out,
        attention.window_missing,
        seen=("TensorRT-Model-Connect #400",),
        **layered,
    )
    yield from both_sides(
        "attn-window-added", "the target's window, where none belongs", OUT, attention.window_added, **layered
    )
    yield Hypothesis(
        "attn-window-swapped",
        "target: odd layers slide and even ones do not",
        out,
        attention.window_swapped,
        fix="layer_types of the target's config",
    )
    yield Hypothesis(
        "attn-window-size",
        "target: the window is {value:+d} rows wide of the configured one",
        out,
        attention.window_sized,
        values=(1, -1),
        fit=Fit(-1024, 4096, clean=0, whole=True),
        fix=MASK_FIX,
    )
    yield Hypothesis(
        "attn-window-factor",
        "target: the window is {value:g} times the configured one",
        out,
        partial(attention.window_sized, relative=True),
        values=(0.5, 2.0, 4.0),
        fix="sliding_window of the target's config",
    )


def _scores():
    yield from both_sides(
        "attn-scale",
        "scores are {value} (a number: times what they should be)",
        OUT,
        attention.scaled,
        values=("not scaled", "scaled twice", "scaled by 1/sqrt(H)", "scaled by 1/sqrt(N*D)"),
        fit=FACTOR,
        fix="the attention scale is 1 / sqrt(head_dim)",
    )
    for id_, how in (
        ("attn-sinks-missing", "missing"),
        ("attn-sinks-zero", "zero"),
        ("attn-sinks-doubled", "doubled"),
        ("attn-sinks-counted-twice", "counted twice"),
        ("attn-sinks-scaled", "scaled"),
        ("attn-sinks-reversed", "reversed"),
        ("attn-sinks-interleaved", "grouped, read as interleaved"),
        ("attn-sinks-grouped", "interleaved, read as grouped"),
    ):
        yield Hypothesis(
            id_,
            f"target: sinks, {how}",
            OUT["target"],
            partial(attention.sinks, how=how),
            values=("all",),
            layered=True,
            fix="the sink logit of each head: one more column of the softmax, unscaled, once, dropped afterwards",
            seen=("vllm-metal #550",) if how == "missing" else (),
        )
    for id_, says, apply, values in (
        (
            "attn-sinks-rolled",
            "head n has the sink of the head {value} before",
            attention.sinks_rolled,
            (1, -1, 2, -2, 4, -4, 8, -8),
        ),
        (
            "attn-sinks-layer",
            "a layer has the sinks of the layer {value:+d} from it",
            attention.sinks_elsewhere,
            (1, -1, 2, -2),
        ),
    ):
        fix = "the slice of the sinks that goes with a rank's heads, and the layer number of their tensor"
        yield Hypothesis(id_, f"target: {says}", OUT["target"], apply, values=values, fix=fix)
    yield Hypothesis(
        "attn-sinks-added-drafter",
        "drafter: a sink with logit 0, where none belongs",
        OUT["drafter"],
        attention.zero_sink,
        values=("all",),
        layered=True,
        fix="the drafter is a Llama: no sinks",
    )
    for suffix, of in (("", "exponentials"), ("-weights", "weights")):
        yield from both_sides(
            f"attn-softmax-bf16-sum{suffix}",
            f"the softmax is divided by the sum of its {of}, added one by one in bfloat16",
            OUT,
            partial(attention.saturating_sum, of=of),
            values=("all",),
            layered=True,
            fix="accumulate in float32",
            seen=("eager NumPy on ml_dtypes arrays",),
        )


def _heads():
    layered = dict(values=("all",), layered=True)
    for id_, how, says in (
        ("attn-gqa-next", "next", "every query head attends to the next kv head"),
        ("attn-head-order", "reversed", "heads in reverse order before o_proj"),
        ("attn-head-tiled", "output tiled", "heads before o_proj in the order of a tiled grouping"),
        ("attn-head-transposed", "transposed", "head and width axes transposed before o_proj"),
    ):
        fix = "the reshape between heads and groups: heads of a group are neighbours"
        yield from both_sides(id_, says, OUT, partial(attention.regrouped, how=how), fix=fix, **layered)
    for id_, stays, says, sides in (
        ("attn-gqa-tiled", "nothing", "", ("target", "drafter")),
        ("attn-gqa-tiled-sinks", "sinks", "; the sinks stay where they were", ("target",)),
        ("attn-gqa-tiled-output", "output", "; the outputs stay in that order before o_proj", ("target", "drafter")),
        ("attn-gqa-tiled-both", "both", "; sinks and outputs go by that order", ("target",)),
    ):
        yield from both_sides(
            id_,
            f"query head n attends to kv head n mod G instead of n div (N / G){says}",
            OUT,
            partial(attention.tiled, stays=stays),
            sides=sides,
            fix="the reshape between heads and groups: heads of a group are neighbours",
            **layered,
        )
    first = {"target": ("target.layers.*.q", "target.layers.*.k"), "drafter": OUT["drafter"]}
    for id_, read in (("attn-gqa-layout", "grouped"), ("attn-gqa-packed", "concatenated")):
        yield from both_sides(
            id_,
            f"the fused q, k, v weight is read {read}, and is not stored so",
            first,
            partial(attention.fused_layout, read=read),
            fix="one layout of the fused weight at load and in the kernel",
            seen=("NeMo-RL #2802",),
            **layered,
        )
    yield from both_sides(
        "load-kv-swapped",
        "k_proj makes the values and v_proj the keys",
        KEYS,
        attention.kv_swapped,
        fix="the order of the fused kv weight",
        **layered,
    )
    for part in "qkvo":
        stages = {"target": OUT["target"] if part == "o" else (f"target.layers.*.{part}",), "drafter": OUT["drafter"]}
        yield from both_sides(
            f"load-{part}-transposed",
            f"{part}_proj is read transposed in the same shape",
            stages,
            partial(attention.projected, part=part, how="transposed"),
            fix="weights are stored [out, in]; a kernel that multiplies x @ W needs them transposed",
            **layered,
        )
    for part in "qk":
        yield from both_sides(
            f"load-{part}-permuted",
            f"{part}_proj is permuted for interleaved rotation",
            {"target": (f"target.layers.*.{part}",), "drafter": OUT["drafter"]},
            partial(attention.projected, part=part, how="heads interleaved"),
            fix="no permutation at load: the checkpoint is half-split already",
            **layered,
        )


def _biases():
    for part in "qkvo":
        for id_, times in ((f"attn-{part}-bias-missing", 0.0), (f"attn-{part}-bias-twice", 2.0)):
            yield Hypothesis(
                id_,
                f"target: the bias of {part}_proj {'is missing' if not times else 'is added twice'}",
                ("target.layers.*.attn_out",) if part == "o" else (f"target.layers.*.{part}",),
                partial(attention.biased, part=part, times=times),
                values=("all",),
                layered=True,
                fix="attention_bias is true in gpt-oss: q, k, v and o have one, added once",
            )
    yield Hypothesis(
        "attn-o-bias-per-rank",
        "target: the output bias is added {value} times, once per rank",
        OUT["target"],
        attention.bias_per_rank,
        values=(4, 8, 2, 16),
        fit=Fit(0.0, 64.0, clean=1.0),
        fix="add the bias behind the all-reduce, or on one rank",
        seen=("mirage #722",),
    )


HYPOTHESES = (*_rope(), *_masks(), *_scores(), *_heads(), *_biases())
