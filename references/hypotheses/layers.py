"""Norms, residual sums, experts and MLPs, embeddings and heads."""

from __future__ import annotations

from functools import partial

from parity.references.hypotheses.catalogue import Fit, Hypothesis, Mutations
from parity.references.hypotheses.inference import Ratio

norms, experts, heads = Mutations("norms"), Mutations("experts"), Mutations("heads")

FACTOR = Fit(0.1, 10.0, clean=1.0, log=True)
ALL = dict(values=("all",), layered=True)
NORM_FIX = "the norm's place and its weight, multiplied as it stands"
RESIDUAL_FIX = "fused add and norm: the residual stream is x + attention + MLP, un-normed"
FFN, ATTN = ("target.layers.*.ffn_out",), ("drafter.layers.*.attn_out",)
GATE_FIX = "gate and up are interleaved on the output axis: (clamp(up) + 1) * gate * sigmoid(1.702 * gate)"
ROUTE_FIX = "top-k on the raw logits with bias, then softmax over the k values"

NORM_STAGES = {
    ("target", "input_layernorm"): ("target.layers.*.attn_in",),
    ("target", "post_attention_layernorm"): ("target.layers.*.router_logits",),
    ("target", "norm"): ("target.pre_head_hidden",),
    ("drafter", "input_layernorm"): ATTN,
    ("drafter", "hidden_norm"): ("drafter.layers.0.attn_out",),
    ("drafter", "post_attention_layernorm"): ("drafter.layers.*.ffn_out",),
    ("drafter", "norm"): ("drafter.pre_head_hidden",),
}
SHORT = {"input_layernorm": "input", "post_attention_layernorm": "mlp", "hidden_norm": "hidden", "norm": "final"}


def _norms():
    for (side, part), stages in NORM_STAGES.items():
        layered = ALL if part.endswith("layernorm") else {}
        for how in ("missing", "unweighted", "plus one", "centred", "twice", "sum of squares", "cast first"):
            if how == "cast first" and side == "drafter":
                continue  # a Llama casts first
            suffix = "" if side == "target" else "-drafter"
            yield Hypothesis(
                f"norm-{SHORT[part]}-{how.replace(' ', '-')}{suffix}".replace(
                    "norm-input-cast-first", "norm-cast-first"
                ),
                f"{side}: {part}, {how}",
                stages,
                partial(norms.norm, side=side, part=part, how=how),
                fix=NORM_FIX,
                seen=("gpt-oss vs Llama",) if how == "cast first" else (),
                **layered,
            )
    for side, stages in (("target", ("target.layers.0.attn_in",)), ("drafter", ATTN)):
        yield Hypothesis(
            "norm-eps" + ("" if side == "target" else "-drafter"),
            f"{side}: eps of the norms is {{value:g}}",
            stages,
            partial(norms.epsilon, side=side),
            values=(1e-6, 1e-12, 1e-3),
            fit=Fit(1e-8, 1.0, clean=1e-5, log=True),
            fix="rms_norm_eps of the config",
        )


def _residuals():
    for side in ("target", "drafter"):
        suffix = "" if side == "target" else "-drafter"
        second = f"{side}.layers.*." + ("router_logits" if side == "target" else "ffn_out")
        for where, how in (
            ("attention", "missing"),
            ("attention", "dropped"),
            ("attention", "normed"),
            ("attention", "twice"),
            ("mlp", "dropped"),
            ("mlp", "normed"),
            ("mlp", "twice"),
            ("mlp", "input"),
        ):
            yield Hypothesis(
                f"residual-{where}-{how}{suffix}",
                f"{side}: the residual sum behind the {where}: {how}",
                (second,) if where == "attention" else (f"{side}.layers.*.out",),
                partial(norms.residual, side=side, where=where, how=how),
                fix=RESIDUAL_FIX,
                seen=("vLLM #26164",) if side == "drafter" else (),
                **ALL,
            )
        yield Hypothesis(
            f"{'drafter' if suffix else 'target'}-final-norm-no-residual",
            f"{side}: the final norm sees the last MLP's output without the residual stream",
            (f"{side}.pre_head_hidden",),
            partial(norms.last_branch, side=side),
            fix="the final fused norm takes (hidden, residual)",
            seen=("vLLM #14464",) if suffix else (),
            cost=2 if suffix else 1,
        )
        logits = ("drafter.logits",) if suffix else ("target.logits", "verify.logits")
        for id_, says, apply in (
            ("no-final-norm", "the head reads the stream before the final norm", norms.head_unnormed),
            ("final-norm-before-head-twice", "the final norm once more before the head", norms.head_normed_twice),
        ):
            yield Hypothesis(
                f"{side}-{id_}",
                f"{side}: {says}",
                logits,
                partial(apply, side=side),
                fix="what the head is applied to",
                seen=("SpecForge #879",) if suffix else (),
                cost=2 if suffix else 1,
            )
    yield Hypothesis(
        "drafter-residual-normed",
        "drafter: {value} goes round the fusion layer's attention",
        ("drafter.layers.0.ffn_out", "drafter.layers.0.out"),
        norms.residual_before,
        values=("the normed hidden", "the fused hidden", "the embedding", "hidden plus embedding", "nothing"),
        fix="the residual of the fusion layer: norm_before_residual of the drafter's config says which hidden",
        seen=("vLLM speculators defaults",),
    )
    for id_, says, apply, values in (
        ("drafter-fusion-order", "hidden and embedding in the wrong order", norms.fusion_order, (None,)),
        ("drafter-fusion-half", "attention sees the {value} alone", norms.fusion_half, ("embedding", "hidden")),
        ("drafter-norms-swapped", "input_layernorm and hidden_norm swapped", norms.swapped, (None,)),
    ):
        fix = "the fusion layer: cat[input_layernorm(embedding), hidden_norm(hidden)]"
        yield Hypothesis(id_, f"drafter: {says}", ("drafter.layers.0.attn_out",), apply, values=values, fix=fix)
    yield Hypothesis(
        "drafter-layer-skipped",
        "a layer of the drafter does not run: {value}",
        ("drafter.layers.*.attn_out",),
        norms.drafter_layer_skipped,
        values=("the last one", 1, 2),
        fix="num_hidden_layers: the drafter's own, the fusion layer counts among them",
    )


def _experts():
    for id_, how in (
        ("ffn-softmax-before-topk", "softmax before top-k"),
        ("ffn-weights-sigmoid", "sigmoid"),
        ("ffn-weights-sigmoid-normalised", "sigmoid, normalised"),
        ("ffn-weights-uniform", "uniform"),
        ("ffn-weights-missing", "one"),
        ("ffn-weights-reversed", "reversed"),
        ("ffn-weights-by-id", "in the order of the ids"),
        ("ffn-weights-raw", "raw logits"),
        ("ffn-last-expert-dropped", "last dropped"),
        ("ffn-first-expert-only", "first only"),
    ):
        seen = ("gpt-oss ports",) if how.startswith("softmax") else ()
        yield Hypothesis(
            id_, f"routing weights: {how}", FFN, partial(experts.routed, how=how), fix=ROUTE_FIX, seen=seen, **ALL
        )
    yield Hypothesis(
        "ffn-weights-scaled",
        "routing weights are {value:.4g} times what they should be",
        FFN,
        experts.weights_scaled,
        values=(2.0, 0.5),
        fit=FACTOR,
        fix="an all-reduce too many or too few behind the experts",
    )
    for id_, times in (("ffn-router-bias", 0.0), ("ffn-router-bias-twice", 2.0)):
        yield Hypothesis(
            id_,
            f"the router's bias {'is dropped' if not times else 'is added twice'}",
            ("target.layers.*.router_logits",),
            partial(experts.router_bias, times=times),
            fix="the router is a linear layer with bias",
            seen=("gpt-oss ports",),
            **ALL,
        )
    chosen = ("target.layers.*.experts",)
    yield Hypothesis(
        "ffn-top-k",
        "{value:+d} experts a token",
        chosen,
        experts.top_k,
        values=(-1, 1, 2),
        fix="num_experts_per_tok of the config",
    )
    yield Hypothesis(
        "ffn-lowest-experts", "the experts with the smallest logits", chosen, experts.lowest, fix=ROUTE_FIX, **ALL
    )
    for how in ("next", "previous", "reversed"):
        yield Hypothesis(
            f"ffn-expert-{how}",
            f"chosen experts run with other experts' weights: {how}",
            FFN,
            partial(experts.numbered, how=how),
            fix="the index from chosen expert to weight",
            **ALL,
        )
    for id_, how, says in (
        ("ffn-shard-swapped", "swapped", "the first two of {value} ranks hold each other's experts"),
        ("ffn-shard-missing", "alone", "the first of {value} ranks' experts alone are summed"),
    ):
        yield Hypothesis(
            id_,
            says,
            FFN,
            partial(experts.sharded, how=how),
            values=(2, 4, 3, 8),
            fix="the expert offset of a rank, and the all-reduce behind the experts",
            seen=("TTrace class",),
        )
    for id_, how in (
        ("ffn-gate-up-swapped", "gate and up swapped"),
        ("load-gate-up-interleaved", "halves"),
        ("ffn-plus-one-missing", "without + 1"),
        ("ffn-plain-silu", "plain silu"),
        ("ffn-gelu", "gelu"),
        ("ffn-gate-sigmoid-only", "sigmoid only"),
        ("ffn-plus-one-on-gate", "gate + 1"),
    ):
        yield Hypothesis(
            id_,
            f"experts' activation: {how}",
            FFN,
            partial(experts.gated, how=how),
            fix=GATE_FIX,
            seen=("code paths of gpt-oss loaders",) if id_.startswith("load") else (),
            **ALL,
        )
    yield Hypothesis(
        "ffn-clamp-missing",
        "gate and up are not clamped",
        FFN,
        experts.clamped,
        fix="swiglu_limit of the config",
        seen=("transformers #40197",),
        **ALL,
    )
    yield Hypothesis(
        "ffn-alpha",
        "the activation's alpha is {value:g}",
        FFN,
        partial(experts.constant, name="alpha"),
        values=(1.0, 1.7),
        fit=Fit(0.5, 4.0, clean=1.702),
        fix="swiglu_alpha of the config",
    )
    yield Hypothesis(
        "ffn-limit",
        "the activation's clamp is at {value:g}",
        FFN,
        partial(experts.constant, name="limit"),
        values=(1.0, 6.0, 10.0),
        fit=Fit(0.5, 20.0, clean=7.0),
        fix="swiglu_limit of the config",
    )
    for part, name in (("down_proj", "down"), ("gate_up_proj", "gate-up")):
        for id_, times in ((f"ffn-{name}-bias-missing", 0.0), (f"ffn-{name}-bias-twice", 2.0)):
            yield Hypothesis(
                id_,
                f"the experts' {part} bias {'is missing' if not times else 'is added twice'}",
                FFN,
                partial(experts.biased, part=part, times=times),
                fix=f"{part}_bias is added once, inside the routing weight",
                **ALL,
            )
        yield Hypothesis(
            f"load-{name}-transposed",
            f"the experts' {part} is read transposed in the same shape",
            FFN,
            partial(experts.stored, part=part, how="transposed"),
            fix="expert weights are [E, in, out] in memory, [E, out, in] in MXFP4 blocks",
            **ALL,
        )
    yield Hypothesis(
        "load-square-transpose",
        "the square down_proj is not transposed",
        FFN,
        partial(experts.stored, part="down_proj", how="square not transposed"),
        fix="the transpose behind dequantisation, which a square weight does not ask for by its shape",
        seen=("code paths of gpt-oss loaders",),
        **ALL,
    )
    yield Hypothesis(
        "ffn-down-bias-per-rank",
        "the experts' down bias is added {value} times, once per rank",
        FFN,
        experts.bias_per_rank,
        values=(4, 8, 2, 16),
        fix="add the bias behind the all-reduce, or on one rank",
        seen=("class of mirage #722",),
    )
    yield Hypothesis(
        "ffn-down-bias-unweighted",
        "the down bias is added behind the routing weight",
        FFN,
        experts.bias_unweighted,
        fix="the down bias is added before the routing weight multiplies",
        **ALL,
    )
    yield Hypothesis(
        "ffn-gate-up-bias-layout",
        "the gate_up bias in halves, the weights interleaved",
        FFN,
        experts.bias_layout,
        fix="weights and bias of gate_up are de-interleaved together",
        **ALL,
    )
    for how in ("gate and up swapped", "gate and up interleaved", "gelu", "swiglu of gpt-oss", "no up"):
        yield Hypothesis(
            f"drafter-mlp-{how.replace(' ', '-')}",
            f"drafter: MLP, {how}",
            ("drafter.layers.*.ffn_out",),
            partial(experts.drafter_mlp, how=how),
            fix="the drafter's MLP is Llama's: down(silu(gate) * up)",
            **ALL,
        )


def _heads():
    embedded = ("times sqrt(H)", "one row late", "one row early", "zero", "the other model's")
    for side, first, logits in (
        ("target", ("target.embed",), ("target.logits", "verify.logits")),
        ("drafter", ("drafter.layers.0.attn_out",), ("drafter.logits",)),
    ):
        suffix = "" if side == "target" else "-drafter"
        yield Hypothesis(
            "load-embed-random" if suffix else "load-embed",
            f"{side}: its embeddings are {{value}} (a number: times as large)",
            first,
            partial(heads.embedding, side=side),
            values=embedded[::-1] if suffix else embedded,
            fit=FACTOR,
            infer=None if suffix else Ratio("target.embed"),
            fix="loading embed_tokens: each model has its own",
            seen=("TorchSpec #38", "vLLM #27737") if suffix else (),
        )
        forms = ("tied to its embedding", "one row late", "one row early", "zero")
        yield Hypothesis(
            f"load-tied-head{suffix}",
            f"{side}: its head is {{value}} (a number: times as large)",
            logits,
            partial(heads.head, side=side),
            values=(*forms, "the target's", "the target's first rows") if suffix else forms,
            fit=FACTOR,
            infer=Ratio(logits[0]),
            fix="loading lm_head: untied, and each model has its own",
            seen=("SpecForge #140", "SGLang #27908"),
            cost=2 if suffix else 1,
        )


HYPOTHESES = (*_norms(), *_residuals(), *_experts(), *_heads())
