"""Choices: greedy ids, draft vocabulary, rows that are read, acceptance; and what the caches hold after commit."""

from __future__ import annotations

from functools import partial
from itertools import product

from parity.references.hypotheses.catalogue import Fit, Hypothesis, Mutations

accepting, caches, heads = Mutations("accepting"), Mutations("caches"), Mutations("heads")

ALL = dict(values=("all",), layered=True)
BOTH = ("drafter", "target", "both")
DRAFTS, TOKENS = ("drafter.draft_tokens",), ("target.tokens", "drafter.draft_tokens", "verify.tokens")
ACCEPTED = ("accept.length", "accept.emitted")
CACHES = ("kv.*",)
FIRST = ("drafter.layers.0.attn_out",)
ROLLBACK_FIX = "rows and length after a round: those of the emitted tokens, in every layer"
D2T_FIX = "d2t is an offset: target id = draft id + d2t[draft id]"


def _choices():
    for id_, how in (
        ("d2t-absolute", "absolute"),
        ("d2t-missing", "missing"),
        ("d2t-subtracted", "subtracted"),
        ("d2t-twice", "added twice"),
        ("d2t-plus-one", "plus one"),
        ("d2t-row-before", "of the row before"),
        ("d2t-row-behind", "of the row behind"),
    ):
        seen = {"d2t-absolute": ("verl-SpeCo #67",), "d2t-missing": ("Automodel #2447",)}.get(id_, ())
        says = f"d2t: {how}"
        yield Hypothesis(id_, says, DRAFTS, partial(heads.vocabulary, how=how), fix=D2T_FIX, seen=seen, cost=2)
    yield Hypothesis(
        "verify-tie-rule",
        "greedy ids: the argmax {value}",
        TOKENS,
        heads.choice,
        values=(
            "the last of equal bfloat16 ones",
            "of bfloat16 logits",
            "the last of equal ones",
            "second best",
            "smallest",
        ),
        fix="the argmax takes the first of equal values, over all shards",
        seen=("lattice #280",),
    )
    for id_, only, stages in (
        ("verify-row-everywhere", False, ("target.logits", "verify.logits")),
        ("verify-row", True, ("verify.logits",)),
    ):
        yield Hypothesis(
            id_,
            "target rows have the logits {value:+d} rows away" + (" in verify rounds" if only else ""),
            stages,
            partial(heads.rows, rounds_only=only),
            values=(-1, 1),
            fix="the rows that verify reads: the last emitted token's, then the drafts'",
            cost=2 if only else 1,
        )
    yield Hypothesis(
        "verify-first-row-missing",
        "verify runs the drafts without the last emitted token in front",
        ("target.embed",),
        heads.verified_without_first,
        fix="the rows that verify runs: the last emitted token, then the drafts",
        cost=2,
    )
    yield Hypothesis(
        "drafter-row",
        "drafts are read {value:+d} rows from where they stand",
        ("drafter.pre_head_hidden",),
        heads.draft_rows,
        values=(-1, 1),
        fix="drafts are rows C - 1 to C + K - 2",
        cost=2,
    )
    yield Hypothesis(
        "drafter-rows-first",
        "drafts are read from the first K rows of the pass",
        ("drafter.pre_head_hidden",),
        heads.first_rows,
        fix="drafts are rows C - 1 to C + K - 2",
        cost=2,
    )
    yield Hypothesis(
        "drafter-rows-reversed",
        "draft rows from the last to the first",
        ("drafter.pre_head_hidden",),
        heads.drafts_reversed,
        fix="drafts are rows C - 1 to C + K - 2, in this order",
        cost=2,
    )


def _acceptance():
    for id_, how, seen in (
        ("accept-past-mismatch", "past the mismatch", ("vLLM #2658",)),
        ("accept-last-match", "up to the last match", ("vLLM #2658",)),
        ("accept-none", "none", ()),
        ("accept-all", "all", ()),
        ("accept-one-fewer", "one fewer", ()),
        ("accept-one-more", "one more", ()),
        ("accept-next-row", "against the next row", ()),
    ):
        says = f"matched drafts are counted: {how}"
        fix = "accepted drafts are those before the first mismatch, each against the row of the token before it"
        yield Hypothesis(id_, says, ACCEPTED, partial(accepting.matched, how=how), fix=fix, seen=seen, cost=2)
    for id_, how, seen in (
        ("accept-rejected-emitted", "the rejected draft", ()),
        ("accept-one-late", "the rejected draft as well", ("openvino.genai #4190",)),
        ("accept-token-late", "one token late", ("openvino.genai #4190",)),
        ("accept-bonus-missing", "no bonus", ("vLLM #17908",)),
        ("accept-bonus-missing-full", "no bonus behind K drafts", ()),
        ("accept-bonus-last-row", "the bonus of the last row", ()),
        ("accept-bonus-twice", "the last token twice", ()),
    ):
        says = f"a round emits: {how}"
        fix = "a round emits the accepted drafts and the target's own token behind them"
        yield Hypothesis(id_, says, ACCEPTED, partial(accepting.emitted, how=how), fix=fix, seen=seen, cost=2)
    for id_, by, says in (
        ("accept-budget-ignored", "budget", "the last round is not cut at the token budget"),
        ("accept-budget-early", "budget, one early", "the budget cuts one token early"),
        ("accept-eos-ignored", "eos", "tokens behind EOS are emitted"),
        ("accept-eos-dropped", "eos dropped", "EOS itself is not emitted"),
    ):
        fix = "cut what a round emits behind EOS and at the budget, and count what is left"
        seen = ("NKIPy PR 63", "vLLM #56101")
        yield Hypothesis(id_, says, ACCEPTED, partial(accepting.uncut, by=by), fix=fix, seen=seen, cost=2)

    for id_, count, seen in (
        ("report-bonus", "without the bonus", ("vLLM #17908",)),
        ("report-truncated-step", "uncut", ("NKIPy PR 63", "vLLM #56101")),
        ("report-uncut-drafts", "uncut, without the bonus", ()),
        ("report-drafted", "K + 1 whatever came", ()),
    ):
        yield Hypothesis(
            id_,
            f"the accepted count is shown {count}; the tokens are right",
            ACCEPTED[:1],
            partial(accepting.shown, count=count),
            fix="acceptance length counts the tokens that were really emitted, the bonus among them",
            seen=seen,
            cost=2,
        )


def _rollback():
    for id_, how, says, seen in (
        ("rollback-noop", "noop", "rejected rows stay, and the next ones go behind them", ("mlx-lm #1109",)),
        ("rollback-too-far", "far", "one accepted row goes as well", ("mlxcel #994",)),
        ("rollback-too-near", "near", "one rejected row stays", ()),
        ("rollback-reset", "reset", "the cache is cleared", ("aprender #2014",)),
    ):
        yield Hypothesis(
            id_,
            f"rollback of {{value}}: {says}",
            CACHES,
            partial(caches.rolled_back, how=how),
            values=BOTH,
            fix=ROLLBACK_FIX,
            seen=seen,
            cost=2,
        )
    yield Hypothesis(
        "rollback-wrong-axis",
        "the drafter's rejected rows stay until they are written over",
        ("kv.drafter.*",),
        caches.drafter_rows_left,
        fix="rollback slices the sequence axis, not the head axis",
        seen=("NKIPy PR 63",),
        cost=2,
    )
    for side in ("target", "drafter"):
        suffix = "" if side == "target" else "-drafter"
        for parts, end in (("kv", ""), ("k", "-k"), ("v", "-v")):
            yield Hypothesis(
                f"rollback-row-cleared{end}{suffix}",
                f"{side}: rollback clears the last committed row of {' and '.join(parts)}, the length is right",
                (f"kv.{side}.*",),
                partial(caches.last_row_cleared, side=side, parts=parts),
                fix=ROLLBACK_FIX,
                seen=("class of mlxcel #994",),
                cost=2,
            )
        yield Hypothesis(
            f"rollback-head-axis{suffix}",
            f"{side}: rollback clears kv heads in all rows: from head {{value}} on",
            (f"kv.{side}.*",),
            partial(caches.heads_cleared, side=side),
            values=(1, 2, 3, 4, 5, 6, 7, 0, "as many as rejected rows"),
            fix="rollback slices the sequence axis, not the head axis",
            seen=("NKIPy PR 63",),
            cost=2,
        )
        for id_, how in (
            ("cache-one-slot-late", "one slot late"),
            ("cache-one-slot-early", "one slot early"),
            ("cache-kv-swapped", "k and v swapped"),
            ("cache-head-order", "heads reversed"),
            ("cache-head-transposed", "head and width transposed"),
            ("cache-no-first-row", "no first row"),
            ("cache-no-last-row", "no last row"),
            ("cache-no-v", "no v"),
            ("cache-one-head", "one head for all"),
        ):
            yield Hypothesis(
                id_ + suffix,
                f"{side}: the cache holds {how}",
                (f"kv.{side}.*",),
                partial(caches.contents, side=side, how=how),
                fix="the scatter of new rows into the cache: slot, head and dtype",
                **ALL,
            )
    ring = dict(
        fix="a ring needs the rows that a rollback brings back", seen=("mlx-lm #1423", "mlx-lm #1427", "mlx-lm #1486")
    )
    yield Hypothesis(
        "commit-window-ring",
        "rejected rows have written over the oldest rows of the sliding layers' ring",
        ("kv.target.*",),
        caches.ring,
        cost=2,
        **ring,
        **ALL,
    )
    yield Hypothesis(
        "commit-window-forgotten",
        "sliding layers keep only the rows inside the window, zeros before",
        ("kv.target.*",),
        caches.ring_forgets,
        **ring,
        **ALL,
    )


def _context():
    for suffix, fresh, whose in (("", 0, "emitted tokens'"), ("-accepted", 1, "accepted drafts'")):
        yield Hypothesis(
            f"commit-stale-placeholder{suffix}",
            f"rows written from placeholders are never overwritten by the {whose} own",
            ("drafter.layers.*.attn_out", "kv.drafter.*"),
            partial(caches.placeholders_kept, fresh=fresh),
            fix="every accepted token is fed again with its true hidden",
            seen=("vLLM #14649",),
            cost=2,
            **ALL,
        )
    yield Hypothesis(
        "commit-accepted-kept",
        "accepted drafts keep the rows of their placeholders, they are not fed again",
        ("kv.drafter.*",),
        caches.accepted_rows_kept,
        fix="every accepted token is fed again with its true hidden",
        seen=("vLLM #14649",),
        cost=2,
    )
    yield Hypothesis(
        "commit-last-row-only",
        "only the newest accepted token is fed again",
        ("drafter.taps",),
        caches.only_last_committed,
        fix="every accepted token is fed again with its true hidden",
        seen=("vLLM #14649",),
        cost=2,
    )
    yield Hypothesis(
        "cache-before-rope",
        "the drafter's cache keeps keys from before the rotation",
        ("kv.drafter.*.k",),
        caches.keys_before_rotation,
        fix="rotate, then write",
        **ALL,
    )
    yield Hypothesis(
        "input-no-prefill",
        "the drafter's prefill is {value}",
        ("drafter.taps", "kv.drafter.*"),
        caches.no_prefill,
        values=("unstored", "skipped"),
        fix="the drafter runs over the whole prompt and keeps its rows",
        seen=("NKIPy PR 63",),
    )
    yield Hypothesis(
        "input-no-prefill-cache",
        "the drafter never runs over the prompt, its cache starts empty: (it hands over, positions start at) {value}",
        ("drafter.taps", "kv.drafter.*"),
        caches.prompt_unseen,
        values=tuple(product(("nothing", "empty tensors"), ("0", "the prompt's end"))),
        fix="the drafter runs over the whole prompt and keeps its rows",
        seen=("NKIPy PR 63",),
    )
    for id_, what in (
        ("input-context-blind", "its own window only"),
        ("drafter-rows-apart", "the cache and itself only"),
        ("drafter-masked-apart", "no other masked row"),
        ("drafter-masked-all", "all masked rows"),
        ("drafter-window-all", "all rows of its window"),
        ("drafter-committed-see-masked", "committed rows see masked ones"),
    ):
        yield Hypothesis(
            id_,
            f"a drafter row sees: {what}",
            FIRST,
            partial(caches.blind, what=what),
            fix="all rows attend causally over the whole drafter cache, masked ones included",
            seen=("NKIPy PR 63",) if id_ == "input-context-blind" else (),
            cost=2,
        )
    yield Hypothesis(
        "drafter-window",
        "a drafter row sees only the newest {value} rows",
        FIRST,
        caches.rows_dropped,
        values=(128, 64, 32, 16),
        fit=Fit(1, 4096, clean=None, log=True, whole=True),
        fix="the drafter has no window",
    )


HYPOTHESES = (*_choices(), *_acceptance(), *_rollback(), *_context())
