"""The case of a dump: what was asked for, prompt by prompt, and what came out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import FailFast, Field, StringConstraints, model_validator

from parity import limits
from parity.errors import UsageError
from parity.golden.fields import KVScales, LayerCount, Line, ManifestPart, Mode, RoundCounts, Schedule, Tokens
from parity.golden.keeping import POSITIONS
from parity.kv_cache import FORM as KV_FORM
from parity.partial_kv import FORM
from parity.sampling import from_text, read_sampling
from parity.seam import Sampling

if TYPE_CHECKING:
    from parity.shown import ShownRows


class Generation(ManifestPart):
    """What one prompt emitted: per verify round the tokens that really came out, and how many were drafts."""

    emitted: Tokens
    acceptance_length: RoundCounts
    accepted_drafts: RoundCounts
    finish: Literal["eos", "length"]


class Parted(ManifestPart):
    """Where a run's sequence is no longer the golden's: the round, and the stage that chose another token.

    What is computed behind it is of another sequence, and is not recorded.
    """

    round: Annotated[int, Field(ge=0, lt=limits.TOKENS)]
    stage: Line


class PromptCase(ManifestPart):
    """One prompt: its id in the prompts file, its token ids, and what it emitted freely.

    A local run generates nothing: its every stage starts from the golden's input. `parted` is there where a run could
    not be made to continue with the golden's tokens. `uniforms` are the random numbers that decided it, of a case that
    samples: see `parity.sampling.as_text`.
    """

    id: Line
    ids: Tokens
    generation: Generation | None
    parted: Parted | None = None
    uniforms: Annotated[str, StringConstraints(max_length=limits.UNIFORMS_BYTES, pattern="^[A-Za-z0-9+/=]*$")] = ""

    @property
    def generated(self) -> Generation:
        """`generation`, where there has to be one.

        Raises:
            UsageError: there is none.
        """
        if self.generation is None:
            raise UsageError(f"prompt {self.id} generated nothing freely")
        return self.generation


class ShownRecord(ManifestPart):
    """Stages that a run's device declares as shown; see `parity.seam.Shown`."""

    stages: Line
    when: Literal["", "prefill", "round"] = ""
    rows: Literal["all", "last"] = "all"


def declared_shown(shown: Iterable[ShownRows]) -> tuple[ShownRecord, ...]:
    """A declaration as a manifest holds it."""
    return tuple(ShownRecord(stages=each.stages, when=each.when, rows=each.rows) for each in shown)


class KeptStages(ManifestPart):
    """Stages that a dump keeps as something less than whole: see `parity.golden.keeping`.

    `numbers` is N of a sketch, whose signs come of `seed`; of the best logits it is how many.
    """

    stages: Line
    form: Literal["sketch", "top"]
    numbers: Annotated[int, Field(ge=1, le=limits.SKETCH)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _seed_of_a_sketch(self) -> KeptStages:
        if self.form == "top" and self.seed:
            raise ValueError("the best logits have no seed")
        return self


class Case(ManifestPart):
    """What was asked for: K, the token budget, the precision and the prompts.

    `schedule` is K of each round in turn, from the first one again behind the last; nothing where it is `k` in every
    one, and `k` is the largest of them. `forced` are the stage templates whose tensors were replaced by the golden's
    while running, where they are shown; `shown` is what the device declares to show and what its verbs return, nothing
    for every stage; `roundings` is the number of bfloat16 runs behind each floor of a golden; `partial_kv` are the
    pages of its cache that a drafter's row attends to (see `parity.partial_kv`), nothing for the whole cache;
    `kv_cache` are the formats of the caches (see `parity.kv_cache`), nothing for the dtype of the pass, and `kv_scales`
    a golden's scales of them by side, part and layer; `settled` are the stage templates of a run of which elements
    within rounding of the middle of two numbers of the format took the golden's side; `lanes` are the sequences that a
    run's device had at once at the most; `layers` is there where a run is of target layers `layers[0]` to `layers[1]` -
    1 alone, each on the golden's inputs; `sampling` is how tokens are drawn (see `parity.sampling`),
    nothing where they are chosen greedily, and `seed` what its random numbers came of. `kept` are the stages that are
    kept as sketches or best logits, and `positions` those of a prompt whose rows are kept; nothing where all is kept
    whole.
    """

    k: Annotated[int, Field(ge=1, le=limits.DRAFTS)]
    schedule: Schedule = ()
    max_new_tokens: Annotated[int, Field(ge=1, le=limits.TOKENS)]
    precision: Literal["float32", "bfloat16"]
    mode: Mode
    forced: tuple[Line, ...]
    shown: Annotated[tuple[ShownRecord, ...], Field(max_length=limits.LAYERS)] = ()
    roundings: Annotated[int, Field(ge=1)] = 1
    partial_kv: Annotated[str, StringConstraints(pattern=f"^({FORM})?$")] = ""
    kv_cache: Annotated[str, StringConstraints(pattern=f"^({KV_FORM})?$")] = ""
    kv_scales: KVScales = Field(default={})
    settled: tuple[Line, ...] = ()
    lanes: Annotated[int, Field(ge=1, le=limits.LANES)] = 1
    layers: tuple[Annotated[int, Field(ge=0, lt=limits.LAYERS)], LayerCount] | None = None
    sampling: Annotated[str, StringConstraints(max_length=256, pattern="^[a-z0-9_.=,+-]*$")] = ""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    kept: Annotated[tuple[KeptStages, ...], Field(max_length=limits.LAYERS)] = ()
    positions: Annotated[str, StringConstraints(max_length=4096, pattern=f"^({POSITIONS})?$")] = ""
    prompts_digest: str
    prompts: Annotated[tuple[PromptCase, ...], FailFast(), Field(max_length=limits.PROMPTS)]

    @property
    def ks(self) -> tuple[int, ...]:
        """K of each round in turn."""
        return self.schedule or (self.k,)

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn by random numbers: at temperature 0 they are greedy."""
        return bool(self.sampling and read_sampling(self.sampling).temperature)

    def sampled(self, prompt: int) -> tuple[Sampling, np.ndarray] | None:
        """How a prompt's tokens are drawn, and its random numbers, float32 [R, 4, K+1]; None where it is greedy."""
        if not self.sampling:
            return None
        return read_sampling(self.sampling), from_text(self.prompts[prompt].uniforms, self.max_new_tokens, self.k)

    def drafts(self, round_: int) -> int:
        """K of a verify round: 1, 2, …"""
        return self.ks[(round_ - 1) % len(self.ks)]
