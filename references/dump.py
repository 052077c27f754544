"""The golden's producer: the references in float32, then twice in bfloat16 on the same tokens.

The float32 run is the truth. The bfloat16 run that follows its tokens is the chained noise floor; the
one whose every stage starts from the float32 run's input is the local noise floor. Several roundings of
each are pooled where the request asks for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from parity.golden.checkpoints import Checkpoint
from parity.golden.digests import digest_files
from parity.golden.fields import Variant
from parity.golden.keeping import Keeping
from parity.golden.parts import Parts
from parity.golden.producer import Producer, ProducerPart
from parity.golden.provenance import producer
from parity.golden.sources import package, reached
from parity.golden.spool import Spool
from parity.golden.writer import DumpWriter
from parity.references.admission import admitted
from parity.references.constants import constants
from parity.references.drafting import drafting, load_loop
from parity.references.loop import SpeculativeLoop
from parity.references.request import Dumped, Numbered, finish
from parity.references.runs import FLOORS, Cast, Computed, PromptRun, Request
from parity.references.sampling import table
from parity.sampling import read_sampling
from parity.stages import Named, declared
from parity.trace import Recorded

OWN = "references: hf_target"
"""How the name of a golden begins whose target is this one's."""
LOOPS = ("drafter.taps", "kv.drafter.length")
"""What the loop hands to the drafter, and counts for it, whoever drafts."""
TARGET_LOOPS = ("target.tokens", "verify.tokens", "kv.target.length")
"""What the loop chooses and counts of the target's stages, whoever computes them."""


def dump_golden(request: Request) -> Path:
    """Run the references over every prompt and write a golden folder.

    Raises:
        UsageError: a checkpoint, the prompts, K, the budget or a stage glob does not fit.
    """
    return dump(request, Computed(f"{OWN} + {drafting(request.drafter).source}", load_loop, own_modules(__name__)))


def dump(request: Request, by: Computed) -> Path:
    """Run a loop in float32, then in bfloat16 on the same tokens, and write a golden folder; see `dump_golden`."""
    checkpoints = request.checkpoints()
    kept_stages = request.smaller.kept()
    prompts = admitted(request)
    cast = Cast(request, by)
    truth = cast.truth()
    sampling = _numbered(request, len(prompts))
    layers = truth.target.config.num_hidden_layers, truth.drafter.config.num_layers
    family = truth.drafter.config.family
    kept = "" if truth.partial is None else str(truth.partial)
    names = declared(*layers, family, bool(kept), bool(truth.quantiser))
    stages = request.wanted(names)

    who = _producer(by, truth.target.module, names)
    parts = Parts(request.out, _identity(request, checkpoints, who)) if request.resume else None

    keep = Keeping(kept_stages, request.positions, names) if kept_stages or request.positions else None
    with DumpWriter(request.out, request.max_bytes, keep, [len(ids) for _, ids in prompts]) as writer:
        cases, group = [], {}
        hold = _records(by, parts, writer)
        for number, (name, ids) in enumerate(prompts):
            generation = parts.take(number, writer) if parts else None
            if generation is None:
                if number not in group:
                    request.progress(number, len(prompts), name)
                    left = [one for one in range(number, len(prompts)) if not (parts and one in parts.done)]
                    group = {
                        one: PromptRun(request, names, stages, cast, place, one, prompts[one][1], sampling, hold)
                        for place, one in enumerate(left[: by.prompts])
                    }
                    by.company([one.run for one in group.values()])
                    by.company([partial(one.follow, variant) for one in group.values() for variant in FLOORS])
                done = group.pop(number)
                done.write(writer)
                generation = done.generation
                if parts:
                    parts.keep(number, generation, writer)
            cases.append((name, ids, generation))
        request.progress(len(prompts), len(prompts), "")
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
            kv_cache=str(truth.formats),
            kv_scales=truth.scales,
            schedule=request.schedule,
            sampling=sampling,
            kept=kept_stages,
            positions=request.positions,
        )
        finish(writer, request, checkpoints, dumped)
    if parts:
        parts.remove()
    return request.out


def _records(by: Computed, parts: Parts | None, writer: DumpWriter) -> Callable[[int, Variant], Recorded]:
    """What makes the record of a prompt's stages of a variant: in memory, on disk, or on disk to be taken up."""
    if not by.spooled:
        return lambda number, variant: {}
    return parts.spool if parts else lambda number, variant: Spool(writer.partial)


def _identity(request: Request, checkpoints: Mapping[str, Checkpoint], who: Producer) -> str:
    """A digest of all that decides what the golden holds."""
    told: dict[str, Any] = {side: one.model_dump(exclude={"path"}) for side, one in checkpoints.items()}
    told |= {"prompts": digest_files([request.prompts]), "producer": who.model_dump(), "asked": request.decides()}
    return sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _numbered(request: Request, prompts: int) -> Numbered | None:
    """How the tokens of so many prompts are drawn; None where they are greedy."""
    if not request.sample:
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


def own_modules(*starts: str) -> set[str]:
    """The references' own modules behind these."""
    own = package(__name__)
    return {name for name in reached(starts) if package(name) == own}


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
