"""A golden's prompts once more, with the experts that a run went on with: the float32 truth and the run's floor.

What a run chose within rounding takes its rows through other weights. What is true of them is what the reference makes
of the same experts. Tokens, drafts and accepted counts are the golden's, as in its own floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from parity.errors import Inconclusive
from parity.golden.case import Case
from parity.golden.checkpoints import Model
from parity.golden.producer import Producer
from parity.golden.provenance import now
from parity.golden.views import DumpView
from parity.golden.writer import DumpWriter
from parity.references import plain
from parity.references.drafting import load_loop
from parity.references.dump import own_producer
from parity.references.loop import SpeculativeLoop
from parity.references.roundings import pooled
from parity.references.runs import FLOORS, Rounded
from parity.trace import ForcingTrace

GREEDY = None, np.empty(0)
VARIANTS = {mode: variant for variant, mode in FLOORS.items()}

Progress = Callable[[int, int, str], None]


def rerun(
    golden: DumpView,
    run: DumpView,
    prompts: Sequence[int],
    out: Path,
    progress: Progress = lambda *_: None,
    floor: bool = True,
    roundings: int = 1,
) -> Path:
    """Write a folder like the golden's that holds these prompts only, under their numbers, with the run's experts.

    Args:
        roundings: bfloat16 runs behind the floor, at the least: as many as behind the golden's.

    Raises:
        Inconclusive: the golden is another producer's, or its checkpoints are not here.
    """
    manifest, mode = golden.manifest, run.manifest.case.mode
    _refuse_others(manifest.producer, manifest.model)
    logging.disable_progress_bar()
    pair = Path(manifest.model.target.path), Path(manifest.model.drafter.path)
    kept = manifest.case.partial_kv, manifest.case.kv_cache
    load = partial(_load, plain.made(manifest.producer), *pair, k=manifest.case.ks, kept=kept)
    truth = load(dtype=torch.float32)
    floors = Rounded(load(dtype=torch.bfloat16), max(manifest.case.roundings, roundings)) if floor else None
    stages = [golden.declared[name] for name in manifest.stages]
    experts = {name for name, named in golden.declared.items() if named.stage.forced}
    forcing = partial(
        ForcingTrace, golden.declared, forced=run.followed | experts, keep=set(manifest.stages).__contains__
    )
    with DumpWriter(out) as writer:
        for done, number in enumerate(prompts):
            prompt = manifest.case.prompts[number]
            progress(done, len(prompts), prompt.id)
            with_own = OwnExperts(golden, run, number, truth.target.config.num_local_experts)
            record = forcing(golden=with_own)
            for loop in (truth, *([floors.loop] if floors else [])):
                loop.sample(*(manifest.case.sampled(number) or GREEDY))
            truth.run(prompt.ids, manifest.case.max_new_tokens, record)
            writer.add(number, "float32", stages, record.tensors)
            if floors is None:
                continue
            with_own.chosen = record.tensors.get
            passes = floors.passes(prompt.ids, manifest.case.max_new_tokens, partial(forcing, golden=with_own))
            writer.add(number, VARIANTS[mode], stages, pooled(record.tensors, passes))
        progress(len(prompts), len(prompts), "")
        writer.finish(
            kind="golden",
            stages=manifest.stages,
            created=now(),
            producer=manifest.producer,
            model=manifest.model,
            case=_forced(manifest.case),
        )
    return out


@lru_cache(maxsize=2)
def _load(
    from_plain: bool, target: Path, drafter: Path, k: Sequence[int], kept: tuple[str, str], dtype: torch.dtype
) -> SpeculativeLoop[Any, Any]:
    """A loop in a precision; a comparison may run it many times."""
    pages, formats = kept
    how = plain.load_loop if from_plain else load_loop
    return how(target, drafter, dtype, k, partial_kv=pages, kv_cache=formats)


def _forced(case: Case) -> Case:
    """The case without what its prompts emitted: here all tokens are forced, and choices are recorded beside them."""
    return case.model_copy(
        update={"prompts": tuple(prompt.model_copy(update={"generation": None}) for prompt in case.prompts)}
    )


class OwnExperts:
    """What is forced in a prompt: the run's experts, and the golden's value of everything else.

    Of a layer whose experts the run does not show, the reference chooses; its floor then follows that (`chosen`). A row
    of ids that are no set of experts is the golden's: it is a bug whatever comes of it.
    """

    def __init__(self, golden: DumpView, run: DumpView, prompt: int, experts: int):
        self.golden, self.run, self.prompt, self.experts = golden, run, prompt, experts
        self.chosen: Callable[[tuple[int, str]], np.ndarray | None] = lambda place: None

    def __call__(self, round_: int, stage: str) -> np.ndarray | None:
        """The value of a stage, or None where it continues with its own."""
        true, forced = self.golden.contents("float32", self.prompt, round_, stage), self.run.follows(round_, stage)
        if forced or not stage.endswith(".experts"):
            return true if forced else None  # of a run that was forced: what it recorded it did not continue with
        own = self.run.contents(self.run.manifest.case.precision, self.prompt, round_, stage)
        if own is None or true is None or own.shape != true.shape or own.dtype.kind not in "iu":
            return self.chosen((round_, stage))
        ordered = np.sort(own.astype(np.int64), axis=1)
        legal = (ordered[:, 0] >= 0) & (ordered[:, -1] < self.experts) & (np.diff(ordered, axis=1) > 0).all(axis=1)
        return np.where(legal[:, None], own, true)


def _refuse_others(producer: Producer, model: Model) -> None:
    """Only what these references made can be made again here."""
    if not own_producer(producer) and not plain.made(producer):
        raise Inconclusive(
            f"the golden is {producer.name}'s, which cannot run with given experts: dump one with `parity dump-golden`"
        )
    for part in (model.target, model.drafter):
        if not (Path(part.path) / "config.json").is_file():
            raise Inconclusive(f"the golden's checkpoint {part.path} is not here: the reference cannot run again")
