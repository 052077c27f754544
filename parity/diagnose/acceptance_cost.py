"""What each failing stage costs of the acceptance: the reference's, with that stage replaced by the device's values.

The reference goes over the golden's rounds, with its experts and tokens, and takes the device's values of one stage,
in all its layers, instead of its own; everything behind them is the reference's. What it drafts then is counted against
its own text. So a stage that is far beyond its noise may turn out to cost nothing, and one that is just beyond it a
draft a round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.diagnose.counterfactual_runs import CounterfactualRuns
from parity.golden.views import DumpView, TrustedGolden
from parity.stages import DRAFT_TOKENS, VERIFY_TOKENS
from parity.trace import ForcingTrace

FAMILIES, PROMPTS = 4, 3
"""Families of stages that are replaced, and prompts: each pair of them takes the reference over a prompt once."""

Lookup = Callable[[int, str], np.ndarray | None]
"""A tensor by round and stage."""

Prompt = tuple[CounterfactualRuns, TrustedGolden, DumpView]
"""What runs references over a prompt, and the golden and the device's run of this prompt alone."""


@dataclass(frozen=True)
class AcceptanceCost:
    """Mean tokens a round, bonus included, over the rounds of a golden.

    Attributes:
        reference: with every stage its own.
        stages: with the device's values of one family of stages, in the flow of data.
        together: with those of all of them.
        left_out: families that fail and were not replaced: there were too many, or they have other shapes.
    """

    reference: float
    stages: Mapping[str, float]
    together: float
    rounds: int
    prompts: int
    left_out: tuple[str, ...] = ()


@dataclass
class _Count:
    """Tokens and rounds."""

    tokens: int = 0
    rounds: int = 0

    def add(self, golden: TrustedGolden, tensors: Lookup) -> None:
        """One prompt's."""
        rounds = _rounds(golden)
        self.tokens += sum(_emitted(golden, tensors, round_) for round_ in range(1, rounds + 1))
        self.rounds += rounds

    @property
    def mean(self) -> float:
        """Tokens a round."""
        return self.tokens / self.rounds


@dataclass
class _Replacing:
    """The failing families of stages, and what the reference drafts with the device's values of some."""

    families: Mapping[str, frozenset[str]]
    counts: dict[frozenset[str], _Count] = field(default_factory=dict)

    def add(self, runs: CounterfactualRuns, golden: TrustedGolden, run: DumpView) -> None:
        """Another prompt: with none of them, with each, with all."""
        every = frozenset[str]().union(*self.families.values())
        for stages in dict.fromkeys((frozenset[str](), *self.families.values(), every)):
            drafted = _drafted(runs, golden, run, stages) if stages else _golden(golden)
            self.counts.setdefault(stages, _Count()).add(golden, drafted)

    def told(self, prompts: int, left_out: Sequence[str]) -> AcceptanceCost:
        """All of it."""
        every = frozenset[str]().union(*self.families.values())
        stages = {family: self.counts[names].mean for family, names in self.families.items()}
        none = self.counts[frozenset()]
        return AcceptanceCost(none.mean, stages, self.counts[every].mean, none.rounds, prompts, tuple(left_out))


def acceptance_cost(failing: Sequence[str], prompts: Iterable[Prompt]) -> AcceptanceCost | None:
    """Replace the failing stages, a family after the other and all at once; None where none of them holds numbers.

    Args:
        failing: names, in the flow of data.
        prompts: the first one's failing stages are meant; of the others as many as there is a limit for.

    Raises:
        TimeIsUp: the limit is reached.
    """
    some = _some(prompts)
    _, golden, run = some[0]
    families: dict[str, set[str]] = {}
    for name in failing:
        if name in golden.manifest.stages and not golden.declared[name].stage.exact:
            families.setdefault(golden.declared[name].stage.template, set()).add(name)
    fitting = [family for family, names in families.items() if all(_fits(golden, run, name) for name in names)]
    if not fitting or DRAFT_TOKENS not in golden.manifest.stages:
        return None
    chosen = {family: frozenset(families[family]) for family in fitting[:FAMILIES]}
    replacing = _Replacing(chosen)
    for prompt in some:
        replacing.add(*prompt)
    return replacing.told(len(some), [family for family in families if family not in chosen])


def _some(prompts: Iterable[Prompt]) -> list[Prompt]:
    return [prompt for prompt, _ in zip(prompts, range(PROMPTS), strict=False)]


def _rounds(golden: TrustedGolden) -> int:
    return len(golden.manifest.case.prompts[0].generated.acceptance_length)


def _golden(golden: TrustedGolden) -> Lookup:
    return lambda round_, stage: golden.contents("float32", 0, round_, stage)


def _fits(golden: DumpView, run: DumpView, stage: str) -> bool:
    """Whether the device's tensors of a stage have the golden's shapes."""
    precision = run.manifest.case.precision
    places = [place for place in golden.rows if place[0] == "float32" and place[3] == stage]
    both = [(golden.contents(*place), run.contents(precision, *place[1:])) for place in places]
    return all(own is not None and true is not None and own.shape == true.shape for true, own in both)


def _drafted(runs: CounterfactualRuns, golden: TrustedGolden, run: DumpView, replaced: Collection[str]) -> Lookup:
    """What the reference drafts and verifies, over the golden's tokens, with the device's values of some stages."""
    precision = run.manifest.case.precision

    def value(round_: int, stage: str) -> np.ndarray | None:
        own = run.contents(precision, 0, round_, stage) if stage in replaced else None
        return golden.contents("float32", 0, round_, stage) if own is None else own

    choices = {name for name, named in golden.declared.items() if named.stage.forced}
    trace = ForcingTrace(golden.declared, value, choices | {*replaced}, keep={DRAFT_TOKENS, VERIFY_TOKENS}.__contains__)
    runs.run("float32", (), golden, trace, _rounds(golden))
    return lambda round_, stage: trace.tensors.get((round_, stage))


def _emitted(golden: TrustedGolden, tensors: Lookup, round_: int) -> int:
    """Tokens of a round: the drafts before the first that the target would not emit, and one; to the text's end."""
    drafts, text = tensors(round_, DRAFT_TOKENS), _text(golden, round_)
    if drafts is None:
        return 1
    agree = [draft == token for draft, token in zip(drafts.tolist(), _wanted(golden, tensors, round_), strict=False)]
    accepted = agree.index(False) if False in agree else len(agree)
    return min(accepted + 1, len(text))


def _text(golden: TrustedGolden, round_: int) -> Sequence[int]:
    """What the golden emits from a round on."""
    told = golden.manifest.case.prompts[0].generated
    return told.emitted[1 + sum(told.acceptance_length[: round_ - 1]) :]


def _wanted(golden: TrustedGolden, tensors: Lookup, round_: int) -> Iterator[int]:
    """The target's token behind each draft: its own as long as the drafts that it saw are these, then the golden's."""
    drafts, seen = tensors(round_, DRAFT_TOKENS), golden.contents("float32", 0, round_, DRAFT_TOKENS)
    verified, text = tensors(round_, VERIFY_TOKENS), _text(golden, round_)
    if drafts is None or seen is None or verified is None:
        yield from text
        return
    for place, token in enumerate(text):
        same = place < len(verified) and np.array_equal(seen[:place], drafts[:place])
        yield int(verified[place]) if same else token
