"""The golden's producer: the references in float32, then twice in bfloat16 on the same tokens.

The float32 run is the truth. The bfloat16 run that follows its tokens is the chained noise floor; the
one whose every stage starts from the float32 run's input is the local noise floor. Several roundings of
each are pooled where the request asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.errors import UsageError
from parity.golden.manifest import Generation, Producer, ProducerPart, Variant
from parity.golden.provenance import producer
from parity.golden.sources import package, reached
from parity.golden.store import DumpWriter
from parity.references.constants import constants
from parity.references.drafting import drafting, load_loop
from parity.references.loop import Result, SpeculativeLoop
from parity.references.prompts import read_prompts
from parity.references.request import Dumped, GoldenRequest, Numbered, finish
from parity.references.roundings import pooled
from parity.references.sampling import table
from parity.sampling import read_sampling
from parity.stages import Named, declared
from parity.trace import ForcingTrace, Tensors, Trace, forced_names

FLOORS: dict[Variant, str] = {"bfloat16": "chained", "bfloat16.local": "local"}
OWN = "references: hf_target"
"""How the name of a golden begins whose target is this one's."""
LOOPS = ("drafter.taps", "kv.drafter.length")
"""What the loop hands to the drafter, and counts for it, whoever drafts."""
TARGET_LOOPS = ("target.tokens", "verify.tokens", "kv.target.length")
"""What the loop chooses and counts of the target's stages, whoever computes them."""


@dataclass(frozen=True)
class Request(GoldenRequest):
    """`roundings` is the number of bfloat16 runs behind each floor, `partial_kv` what `parity.partial_kv` reads.

    `schedule` is K of each round in turn, from the first one again behind the last; nothing for `k` in all of them.
    `sample` is what `parity.sampling` reads, nothing for greedy tokens; `seed` is of the random numbers.
    """

    roundings: int = 1
    partial_kv: str = ""
    schedule: tuple[int, ...] = ()
    sample: str = ""
    seed: int = 0


@dataclass(frozen=True)
class Computed:
    """Who computes: a name, `load(target, drafter, dtype, k)` to a loop, and the modules of it.

    `target` are the modules that compute the target alone, out of ids and cached rows that the loop hands them;
    `drafting` those that draft, where they are others than those of the loop.
    """

    name: str
    load: Callable[..., SpeculativeLoop[Any, Any]]
    modules: Collection[str]
    drafting: Collection[str] = ()
    target: Collection[str] = ()


@dataclass
class Rounded:
    """The loop in bfloat16, as often as its golden asks for, each time with its sums in another order."""

    loop: SpeculativeLoop[Any, Any]
    count: int

    def __post_init__(self) -> None:
        self.roundings = self.loop.target.roundings(self.loop.drafter)

    def passes(self, ids: Sequence[int], budget: int, trace: Callable[[], ForcingTrace]) -> Iterator[Tensors]:
        """What each pass over a prompt records, with what a fresh trace forces."""
        for rounding in range(self.count):
            self.roundings.choose(rounding)
            floor = trace()
            self.loop.run(ids, budget, floor)
            yield floor.tensors


def dump_golden(request: Request) -> Path:
    """Run the references over every prompt and write a golden folder.

    Raises:
        UsageError: a checkpoint, the prompts, K, the budget or a stage glob does not fit.
    """
    return dump(request, Computed(f"{OWN} + {drafting(request.drafter).source}", load_loop, own_modules(__name__)))


def dump(request: Request, by: Computed) -> Path:
    """Run a loop in float32, then in bfloat16 on the same tokens, and write a golden folder; see `dump_golden`."""
    checkpoints = request.checkpoints()
    truth, rough = (
        by.load(request.target, request.drafter, dtype, request.schedule or request.k)
        for dtype in (torch.float32, torch.bfloat16)
    )
    for loop in (truth, rough):
        loop.attend_to(request.partial_kv)
    rounded = Rounded(rough, request.roundings)
    prompts = read_prompts(request.prompts, request.target, truth.target.config.vocab_size)
    for _, ids in prompts:
        truth.admit(len(ids), request.max_new_tokens)
    sampling = _numbered(request, len(prompts))
    layers = truth.target.config.num_hidden_layers, truth.drafter.config.num_layers
    family = truth.drafter.config.family
    kept = "" if truth.partial is None else str(truth.partial)
    names = declared(*layers, family, bool(kept))
    stages = request.wanted(names)
    wanted = {named.name for named in stages}

    with DumpWriter(request.out, request.max_bytes) as writer:
        cases = []
        for number, (name, ids) in enumerate(prompts):
            request.progress(number, len(prompts), name)
            if sampling is not None:
                for loop in (truth, rough):
                    loop.sample(sampling.settings, sampling.uniforms[number])
            record = Trace(names)
            result = truth.run(ids, request.max_new_tokens, record)
            writer.add(number, "float32", stages, _kept(record.tensors, wanted))
            for variant, mode in FLOORS.items():
                forced = forced_names(mode, names)
                forcing = partial(ForcingTrace, names, true(record), forced, keep=wanted.__contains__)
                passes = rounded.passes(ids, request.max_new_tokens, forcing)
                writer.add(number, variant, stages, pooled(record.tensors, passes))
            cases.append((name, ids, _generation(result)))
        request.progress(len(prompts), len(prompts), "")
        who = _producer(by, truth.target.module, names)
        dumped = Dumped(
            who,
            layers,
            stages,
            cases,
            request.roundings,
            constants(truth),
            family,
            draft_vocabulary=_vocabulary(truth) if "drafter.logits" in names else None,
            partial_kv=kept,
            schedule=request.schedule,
            sampling=sampling,
        )
        finish(writer, request, checkpoints, dumped)
    return request.out


def _numbered(request: Request, prompts: int) -> Numbered | None:
    """How the tokens of so many prompts are drawn; None where they are greedy."""
    if not request.sample:
        if request.seed:
            raise UsageError("--seed is of --sample: greedy tokens are not drawn")
        return None
    drawn = (table(request.seed, prompt, request.max_new_tokens, request.k) for prompt in range(prompts))
    return Numbered(read_sampling(request.sample), request.seed, tuple(drawn))


def _vocabulary(loop: SpeculativeLoop[Any, Any]) -> tuple[int, ...]:
    """The token of each column of the draft logits; empty where a column is its token's id."""
    to_target = getattr(loop.drafter, "to_target", None)
    columns = torch.arange(getattr(loop.drafter.config, "draft_vocab_size", loop.target.config.vocab_size))
    tokens = columns if to_target is None else to_target(columns)
    return () if torch.equal(tokens, columns) else tuple(tokens.tolist())


def own_producer(producer: Producer) -> bool:
    """Whether a golden is all these references' own, another one's drafter apart."""
    return __name__ in producer.modules and producer.name.startswith(OWN) and not producer.parts


def true(record: Trace) -> Callable[[int, str], np.ndarray | None]:
    """What a record holds of a round's stage, to be forced."""
    return lambda round_, stage: record.tensors.get((round_, stage))


def own_modules(*starts: str) -> set[str]:
    """The references' own modules behind these."""
    own = package(__name__)
    return {name for name in reached(starts) if package(name) == own}


def _kept(tensors: Tensors, wanted: set[str]) -> Tensors:
    return {place: value for place, value in tensors.items() if place[1] in wanted}


def _generation(result: Result) -> Generation:
    return Generation(
        emitted=result.emitted,
        acceptance_length=result.acceptance_length,
        accepted_drafts=result.accepted_drafts,
        finish=result.finish,
    )


def _producer(by: Computed, target: str, names: dict[str, Named]) -> Producer:
    """The record of who computed; the target's maths comes from the module `target`.

    What drafting modules compute is what the drafter makes out of taps and tokens; the taps themselves are the loop's,
    and so are choices and lengths.
    """
    packages = ("torch", "transformers", "safetensors", "numpy")
    made = producer(by.name, {*by.modules, target}, packages, torch.get_num_threads())
    sides = (
        (by.target, ("target.", "verify.", "kv.target."), TARGET_LOOPS),
        (by.drafting, ("drafter.", "kv.drafter."), LOOPS),
    )
    parts = tuple(
        ProducerPart(
            stages=tuple(name for name in names if name.startswith(prefixes) and name not in loops),
            modules=tuple(sorted(modules)),
        )
        for modules, prefixes, loops in sides
        if modules
    )
    return made.model_copy(update={"parts": parts})
