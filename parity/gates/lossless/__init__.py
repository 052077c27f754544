"""Speculation emits what plain greedy decoding of the same device emits; where it does not, a tie has to explain it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from parity.compare.choices import BUG, NOISE, SAME, TIE, judge, judge_experts, ranked, ulp
from parity.compare.report import FAIL, INCONCLUSIVE, PASS, Place
from parity.decode import Decoded
from parity.errors import Inconclusive
from parity.gates.context import Bench, Noise
from parity.gates.evidence import Check
from parity.gates.lossless.aligned import Aligned, Divergence, align
from parity.gates.lossless.golden_text import golden_text
from parity.gates.rule import agreements, rule

TWO_ULP, ROUTER = "within two ULP", "behind a router tie"
EXPLAINED = (TIE, TWO_ULP, NOISE, ROUTER)


def checks(bench: Bench) -> Iterator[Check]:
    """Speculation against plain decoding, and that against the golden, in float32 and the bench's precision; the accept rule alone."""
    noise = Noise(bench.golden)
    for precision in dict.fromkeys(("float32", bench.precision)):
        yield same_text(bench, noise, precision)
        yield golden_text(bench, precision)
    yield accepts_by_rule(bench)


def same_text(bench: Bench, noise: Noise, precision: str) -> Check:
    """Every golden prompt; every divergence classified by the device's own logits."""
    case, device = bench.golden.manifest.case, bench.device(precision)
    runs, verdicts, first = [], Counter(), None
    for number, prompt in enumerate(case.prompts):
        bench.progress(number, len(case.prompts), f"lossless {prompt.id}")
        run, plain = align(device, number, prompt.ids, case.max_new_tokens)
        runs.append(run)
        for one in run.divergences:
            verdict = explain(one, plain, noise if precision == "bfloat16" else None)
            verdicts[verdict] += 1
            first = one if first is None or (verdict == BUG and not verdicts[BUG] > 1) else first
    return _check(precision, runs, verdicts, first)


def explain(found: Divergence, plain: Decoded, noise: Noise | None) -> str:
    """Why speculation chose another token: by the plain row's logits; in float32 (no noise) nothing explains it.

    A router tie on the way explains any regret: the first expert that parted must itself be a tie or within
    noise, by the plain row's router logits. One or two ULP are bfloat16's, of the larger logit.
    """
    scores = found.scores[None]
    if noise is None or not 0 <= found.theirs < scores.shape[1]:
        return BUG
    mine, theirs = ranked(scores, np.array([found.mine]), np.array([found.theirs]))
    judged = judge(scores, mine, theirs, noise.rms("verify.logits", scores))
    step = ulp(np.maximum(abs(scores[0, found.mine]), abs(scores[0, found.theirs])))
    if judged.verdict[0] != TIE and judged.regret[0] <= 2 * step:
        return TWO_ULP
    return str(judged.verdict[0]) if judged.verdict[0] != BUG else _routed(found, plain, noise)


def _routed(found: Divergence, plain: Decoded, noise: Noise) -> str:
    """Whether a router tie came before."""
    if found.flip is None:
        return BUG
    name, row, experts = found.flip
    logits = name.replace(".experts", ".router_logits")
    scores, mine = (plain.rows[one][row : row + 1] for one in (logits, name))
    scores = scores.astype(np.float32)
    judged = judge_experts(scores, mine.astype(np.int64), experts[None].astype(np.int64), noise.rms(logits, scores))
    return ROUTER if judged.verdict[0] in (SAME, TIE, NOISE) else BUG


def _check(precision: str, runs: list[Aligned], verdicts: Counter, first: Divergence | None) -> Check:
    tokens, lost, drafts = (sum(getattr(run, name) for run in runs) for name in ("tokens", "lost", "drafts"))
    wrong = next((run.wrong for run in runs if run.wrong), "")
    whole = sum(not run.divergences and not run.lost for run in runs)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in (*EXPLAINED, BUG) if verdicts[name] or name in (TIE, BUG))
    line = f"{whole} of {len(runs)} prompts the same, {tokens} tokens, {drafts} accepted drafts; "
    line += f"{sum(verdicts.values())} rows chose another: {counts}"
    line += f"; {lost} tokens not reached" if lost else ""
    place = Place("verify.tokens", None, first.prompt, first.round, first.position) if first else None
    verdict = FAIL if verdicts[BUG] or wrong else INCONCLUSIVE if lost or not drafts else PASS
    line += f"; {wrong}" if wrong else "" if drafts else "; no draft was ever accepted: losslessness was not tried"
    figures = {"prompts": len(runs), "same": whole, "tokens": tokens, "lost": lost, "accepted_drafts": drafts}
    figures |= {"rounds": sum(run.rounds for run in runs), "divergences": dict(verdicts)}
    return Check(
        f"speculation = plain decoding, {precision}", verdict, line, figures, None if verdict == PASS else place
    )


def accepts_by_rule(bench: Bench) -> Check:
    """The accept step alone, nothing cut."""
    name, golden, device = "accept rule", bench.golden.manifest.case, bench.device()
    ids = golden.prompts[0].ids
    try:
        found = rule(device, ids, agreements(ids, golden.k, device.describe().eos))
    except Inconclusive as error:
        return Check(name, INCONCLUSIVE, f"not checked: {error}")
    figures = {"rounds": found.rounds, "wrong": list(found.wrong)}
    if found.wrong:
        return Check(
            name, FAIL, f"{len(found.wrong)} of {found.rounds} rounds emit other tokens; {found.wrong[0]}", figures
        )
    return Check(name, PASS, f"{found.rounds} made-up rounds, every pattern of accepted and rejected drafts", figures)
