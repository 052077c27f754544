"""Tensor-parallel ranks: partial sums, shards of weights, vocabulary shards, one rank's part of a cache.

Everything is shared out as Megatron does it: q, k, v, gate and up by output columns, heads whole; o and down by input
rows, their partial sums added up over the ranks and the bias added once; head and embedding by ids.
"""

from __future__ import annotations

from functools import partial

from parity.references.hypotheses.catalogue import Hypothesis, Mutations

ranks, reductions = Mutations("ranks"), Mutations("reductions")

SPLITS = (2, 4, 8)
ONE_OF = ((0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (3, 4), (0, 8), (7, 8))
"""(rank, ranks)."""

FORMS = tuple((form, many) for many in (2, 4) for form in ("float8 e4m3", "float8 e5m2", "int8 per row", "bfloat16"))
SUM_FIX = "the all-reduce behind row-parallel projections: once each, over all ranks, waited for, the bias outside it"
SHARD_FIX = "which rows and columns of the checkpoint's weight a rank loads"
CHOICE_FIX = "the all-gather of the shards' best values, with the offsets of their ids"
SHARDS = ("class of TTrace's shard faults",)

PARTS = {"attn": "o_proj", "ffn": "down_proj", "all": "o_proj and down_proj"}
ENDS = {"target": "", "drafter": "-drafter"}


def _sums():
    for side, part in ((side, part) for side in ENDS for part in PARTS):
        name = f"tp-{side}-{{}}" if part == "all" else f"tp-{part}-{{}}{ENDS[side]}"
        stages = (f"{side}.layers.*.{'attn_out' if part == 'all' else part + '_out'}",)
        sums = f"{side}: the ranks' partial sums of {PARTS[part]}"
        on = dict(side=side, part=part)
        for defect, says, apply, values, seen in (
            (
                "not-reduced",
                "are not added up, one rank's goes on: (rank, ranks) {value}",
                reductions.alone,
                ONE_OF,
                SHARDS,
            ),
            (
                "averaged",
                "are averaged over {value} ranks, not added",
                partial(reductions.scaled, how="averaged"),
                SPLITS,
                (),
            ),
            ("repeated", "are added up {value} times over", partial(reductions.scaled, how="repeated"), SPLITS, ()),
        ):
            yield Hypothesis(
                name.format(defect), f"{sums} {says}", stages, partial(apply, **on), values, fix=SUM_FIX, seen=seen
            )
        if part != "all":
            yield from _late_or_narrow(name, sums, stages, on)
    for how, says in (("averaged", "averaged over"), ("repeated", "added up once for each of")):
        yield Hypothesis(
            f"tp-attn-{how}-biased",
            f"target: the partial sums of o_proj, the bias among them, are {says} {{value}} ranks",
            ("target.layers.*.attn_out",),
            partial(reductions.scaled, side="target", part="attn", how=how, biased=True),
            values=SPLITS,
            fix=SUM_FIX,
        )


def _late_or_narrow(name, sums, stages, on):
    yield Hypothesis(
        name.format("narrowed"),
        f"{sums} travel in another form: (form, ranks) {{value}}",
        stages,
        partial(reductions.narrowed, **on),
        values=FORMS,
        fix="the dtype of the all-reduce",
    )
    for end, first, says in (
        ("", "zero", "nothing in the first layer"),
        ("-own", "own", "its own in the first layer"),
        ("-around", "last", "in the first layer that of the last one of the pass before"),
    ):
        yield Hypothesis(
            name.format(f"stale{end}"),
            f"{sums}: one rank's is that of the layer before, {says}: (rank, ranks) {{value}}",
            stages,
            partial(reductions.stale, first=first, **on),
            values=((1, 2), (0, 2), (1, 4), (3, 4)),
            fix="the barrier between a rank's projection and the all-reduce of it",
            seen=("class of missing barriers",),
        )


HOW = {
    "exchanged": ("the next rank's", "each of {value} ranks holds the next one's"),
    "exchanged-back": ("the previous rank's", "each of {value} ranks holds the previous one's"),
    "first": ("the first rank's", "each of {value} ranks holds the first one's"),
    "strided": ("in turn", "{value} ranks take them in turn, not in runs"),
}


def _shards():
    for side, part, id_, what, stage in (
        ("target", "q", "q-heads", "query heads", "q"),
        ("target", "kv", "kv-heads", "kv heads", "k"),
        ("target", "o", "o-rows", "rows of o_proj", "attn_out"),
        ("target", "sinks", "sinks", "sinks", "attn_out"),
        ("target", "down", "down-rows", "rows of down_proj", "ffn_out"),
        ("target", "head", "head", "columns of the head", None),
        ("drafter", "q", "q-heads", "query heads", "attn_out"),
        ("drafter", "kv", "kv-heads", "kv heads", "attn_out"),
        ("drafter", "o", "o-rows", "rows of o_proj", "attn_out"),
        ("drafter", "down", "down-rows", "rows of down_proj", "ffn_out"),
        ("drafter", "head", "head", "columns of the head", None),
    ):
        stages = (
            (f"{side}.layers.*.{stage}",) if stage else (f"{side}.logits",) + ("verify.logits",) * (side == "target")
        )
        for defect, (how, says) in HOW.items():
            if (part, defect) == ("sinks", "strided"):
                continue  # attn-sinks-interleaved and attn-sinks-grouped
            yield Hypothesis(
                f"tp-{id_}-{defect}{ENDS[side]}",
                f"{side}: {what}: {says}",
                stages,
                partial(ranks.reshard, side=side, part=part, how=how),
                values=SPLITS
                if defect != "exchanged-back"
                else (4, 8),  # of two ranks the next one is the previous one
                fix=SHARD_FIX,
                seen=SHARDS if defect == "exchanged" and part != "sinks" else (),  # attn-sinks-rolled says it plainer
                cost=2 if stage is None and side == "drafter" else 1,
            )


def _gate_up():
    values = tuple((many, how) for how in ("run", "in turn") for many in SPLITS)
    for side, end, biases, rest in (
        ("target", "", True, "the biases with it"),
        ("target", "-weights", False, "the biases right"),
        ("drafter", "-drafter", True, "gate and up fused"),
    ):
        yield Hypothesis(
            f"tp-gate-up-run{end}",
            f"{side}: gate_up is shared out whole, each rank halves what it gets, {rest}: (ranks, columns in a run or in turn) {{value}}",
            (f"{side}.layers.*.ffn_out",),
            partial(ranks.gate_up_split, side=side, **({} if biases else {"biases": False})),
            values=values,
            fix="gate and up are shared out each by itself",
            seen=("loaders of fused gate_up projections",),
        )


def _vocabulary():
    yield Hypothesis(
        "tp-embed-not-reduced",
        "target: an embedding is looked up in one rank's ids alone: (rank, ranks) {value}",
        ("target.embed",),
        ranks.embedded,
        values=ONE_OF,
        fix="the all-reduce behind a vocabulary-parallel embedding",
    )
    tokens = {"target": ("target.tokens", "verify.tokens"), "drafter": ("drafter.draft_tokens",)}
    for of, name in (("target", "tp"), ("drafter", "tp-draft"), ("both", "tp-both")):
        for id_, how, says in (
            ("argmax-first-shard", "first", "sees the first of {value} vocabulary shards alone"),
            ("argmax-no-offset", "offset", "over {value} vocabulary shards lacks the shard's offset"),
        ):
            yield Hypothesis(
                f"{name}-{id_}",
                f"{'target and drafter' if of == 'both' else of}: the argmax {says}",
                tokens.get(of, (*tokens["target"], *tokens["drafter"])),
                partial(ranks.chosen_by, of=of, how=how),
                values=SPLITS,
                fix=CHOICE_FIX,
                seen=() if of == "both" else ("vocabulary-parallel heads",),
            )


def _caches():
    for side in ENDS:
        for id_, how, says in (
            ("rollback-one-rank", "far", "loses its last committed row"),
            ("rollback-one-rank-reset", "reset", "is cleared"),
        ):
            yield Hypothesis(
                f"tp-{id_}{ENDS[side]}",
                f"{side}: one rank's part of the cache {says} in a rollback: (rank, ranks) {{value}}",
                (f"kv.{side}.*",),
                partial(ranks.rolled_back, side=side, how=how),
                values=ONE_OF,
                fix="every rank rolls its caches back to the same length",
                seen=("class of mlxcel #994",) if how == "far" else (),
                cost=2,
            )


HYPOTHESES = (*_sums(), *_shards(), *_gate_up(), *_vocabulary(), *_caches())
