"""Speculative sampling: the accept rule alone, every decision once more, and what comes out as a distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from parity.compare.report import FAIL, NOT_JUDGED, PASS
from parity.compare.sampling.replay import Decision, decisions, tightened
from parity.compare.sampling.round import SampledRound
from parity.compare.vocabulary import DraftVocabulary
from parity.errors import NotOffered
from parity.families import MODEL, family_of
from parity.gates.context import GateContext
from parity.gates.decisions_rows import read_draft_vocabulary
from parity.gates.gate import Check
from parity.gates.sampling import steered
from parity.gates.sampling.counts import ERROR_RATE, Counts
from parity.gates.sampling.drawn import rule_drawn
from parity.gates.sampling.lanes import in_lanes
from parity.gates.sampling.rounds import Play, refuse_own_numbers, sampled, table
from parity.gates.sampling.rule import EXACT, FINE_BOUND, fine_shares, whole_rounds
from parity.gates.sampling.verdict import judged
from parity.seam import Looping, Rule, Sampling

RULES: tuple[Rule, ...] = ("residual", "match")
PLAIN: dict[str, Any] = {"temperature": 1.0}
PROCESSED: dict[str, Any] = {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.02}
"""All processors; hot, so that rows have several tokens left, which is what decisions are made between."""
ALONE: dict[str, Any] = {"temperature": 0.7, "top_k": 6, "top_p": 0.9, "min_p": 0.05}
"""The same for the rule alone, in a vocabulary of eight."""
GREEDY: dict[str, Any] = {"temperature": 0.0}
TOGETHER: tuple[dict[str, Any], ...] = (PROCESSED, PLAIN | {"rule": "match"}, GREEDY)
"""Of the lanes of a batch, one after the other."""

PROMPTS, BUDGET = 2, 24
ROUNDS = 300
"""Of each rule for the distribution, those of the replay among them."""

Steering = Callable[[], dict[str, list[Decision]]]
"""Plays a sequence by numbers that are chosen; what was decided, by what it was steered to."""


def checks(context: GateContext) -> Iterator[Check]:
    """Both rules; the rule alone first, which needs no model."""
    device = context.device()
    if not device.describe().samples:
        yield Check("sampling", NOT_JUDGED, "the device says nothing of sampling (`Samples`)", undeclared=True)
        return
    if isinstance(device, Looping):
        yield Check(
            "sampling", NOT_JUDGED, "the device's loop is one piece: no round of it can be asked", undeclared=True
        )
        return
    for rule in RULES:
        yield rule_drawn(context, rule, ALONE) if device.describe().own_numbers else _rule_alone(context, rule)
    has_logits = MODEL in family_of(context.golden.manifest.model.family).has
    vocabulary = read_draft_vocabulary(context.golden) if has_logits else DraftVocabulary(np.empty(0, np.int64), "")
    yield _at_zero(context, vocabulary)
    for rule in RULES:
        yield from _in_rounds(context, rule, vocabulary)
    yield in_lanes(context, [Sampling(**values) for values in TOGETHER], vocabulary, BUDGET)


def _in_rounds(context: GateContext, rule: Rule, vocabulary: DraftVocabulary) -> Iterator[Check]:
    """Sequences under one rule: decision by decision, and as a distribution under the last settings that it has."""
    counts, random, last = Counts(), np.random.default_rng(context.seed), Sampling(rule=rule, **PLAIN)
    steering: list[Steering] = []
    for number, (name, values) in enumerate((("plain", PLAIN), ("processed", PROCESSED))):
        settings, name = Sampling(rule=rule, **values), f"replay, {rule}, {name}"
        try:
            check, rounds, chosen = _replayed(context, name, settings, vocabulary, number)
        except NotOffered as error:
            yield Check(name, NOT_JUDGED, str(error))
            continue
        yield check
        last, steering = settings, steering + chosen
        for seen in rounds:
            counts.add(seen, settings, vocabulary, random)
    if steering:
        yield steered.check_of(f"steered, {rule}", [made() for made in steering], context.seed)
    try:
        yield _distribution(context, last, vocabulary, counts, random)
    except NotOffered as error:
        yield Check(f"distribution, {rule}", NOT_JUDGED, str(error))


def _rule_alone(context: GateContext, rule: Rule) -> Check:
    """The device's own function on distributions that are known."""
    name, device = f"rule alone, {rule}", context.device()
    try:
        count, worst = whole_rounds(device, Sampling(rule=rule))
        fine = [fine_shares(device, Sampling(rule=rule, **values), context.seed) for values in (PLAIN, ALONE, GREEDY)]
    except NotOffered as error:
        return Check(name, NOT_JUDGED, str(error))
    shares, share = sum(number for number, _ in fine), max((off for _, off in fine), key=lambda off: off.by)
    line = f"{count} rounds, off by {worst.by:.1g} (bound {EXACT:g}); {shares} shares, off by {share.by:.2g} "
    line += f"(bound {FINE_BOUND:.2g}), seed {context.seed}"
    figures = {"rounds": count, "worst": worst.by, "shares": shares, "worst_share": share.by, "bound": FINE_BOUND}
    wrong = [str(off) for off, bound in ((worst, EXACT), (share, FINE_BOUND)) if not off.by <= bound]
    return Check(name, FAIL if wrong else PASS, "; ".join([*wrong, line]), figures)


def _at_zero(context: GateContext, vocabulary: DraftVocabulary) -> Check:
    """Temperature 0 is greedy: every row's token and every draft is the largest logit's, the lowest id on a tie."""
    uniforms = table((context.seed,), BUDGET, context.golden.manifest.case.k)
    rounds = _play(context, Sampling(temperature=0), 0, uniforms)
    rows, wrong = 0, []
    for seen in rounds:
        made = [("token", seen.tokens[: seen.decided], seen.logits.argmax(axis=1)[: seen.decided])]
        if seen.draft_logits is not None:
            made.append(("draft", seen.drafts, vocabulary.tokens[seen.draft_logits.argmax(axis=1)]))
        rows += sum(len(got) for _, got, _ in made)
        wrong += [
            f"round {seen.round}, row {row}: {what} {got[row]}, {due[row]} is the largest"
            for what, got, due in made
            for row in np.flatnonzero(got != due)
        ]
    line = f"{len(rounds)} rounds, {rows} choices"
    told = f"{wrong[0]}; {len(wrong)} wrong; {line}" if wrong else f"{line}, each the largest logit's"
    return Check("temperature 0", FAIL if wrong else PASS, told, {"choices": rows, "wrong": len(wrong)})


def _replayed(
    context: GateContext, name: str, settings: Sampling, vocabulary: DraftVocabulary, number: int
) -> tuple[Check, list[SampledRound], list[Steering]]:
    """Prompts sampled by random numbers, and again by numbers that decide the same a margin from an edge; what plays
    them by numbers that are chosen."""
    refuse_own_numbers(context.device())
    rounds: list[SampledRound] = []
    made: list[Decision] = []
    again: list[Decision] = []
    steering: list[Steering] = []
    for prompt in range(min(PROMPTS, len(context.golden.manifest.case.prompts))):
        uniforms = table((context.seed, number, prompt), BUDGET, context.golden.manifest.case.k)
        played = _play(context, settings, prompt, uniforms)
        own = [one for seen in played for one in decisions(seen, settings, vocabulary)]
        closer = _play(context, settings, prompt, tightened(own, uniforms))
        again += [one for seen in closer for one in decisions(seen, settings, vocabulary)]
        play = partial(_play, context, settings, prompt)
        steering.append(partial(steered.made, played, settings, vocabulary, uniforms, play))
        rounds, made = rounds + played, made + own
    return judged(name, rounds, made, again, context.seed), rounds, steering


def _play(
    context: GateContext, settings: Sampling, prompt: int, uniforms: np.ndarray, budget: int | None = None
) -> list[SampledRound]:
    ids = context.golden.manifest.case.prompts[prompt].ids
    return sampled(context.device(), Play(settings, prompt, ids, budget or BUDGET, uniforms))


def _distribution(
    context: GateContext, settings: Sampling, vocabulary: DraftVocabulary, counts: Counts, random: np.random.Generator
) -> Check:
    """More rounds, as many as are asked for; every position and every accepted length on its own."""
    prompts, number, made = len(context.golden.manifest.case.prompts), 0, sum(map(len, counts.ranks.values()))
    while made < ROUNDS:
        uniforms = table((context.seed, 2, number), BUDGET, context.golden.manifest.case.k)
        for seen in _play(context, settings, number % prompts, uniforms):
            counts.add(seen, settings, vocabulary, random)
            made += 1
        number += 1
    lines = list(counts.lines())
    wrong = [line for line in lines if line.off > line.bound]
    said = f"error rate {ERROR_RATE:g} each, a bias of the bound's size shows every other time, seed {context.seed}"
    figures = {line.what: {"samples": line.samples, "off": line.off, "bound": line.bound} for line in lines}
    text = "; ".join(map(str, [*wrong, *(line for line in lines if line not in wrong)]))
    return Check(f"distribution, {settings.rule}", FAIL if wrong else PASS, f"{text}; {said}", figures)
