"""The manifest of a dump: what was run, which stages were declared, and one row per tensor.

The JSON Schema of `Manifest` is published in docs/golden.schema.json; a test keeps it current.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationError,
    model_validator,
)

from parity import files, limits
from parity.errors import UsageError
from parity.families import Family
from parity.golden.digests import UNSEALED, own_digest, sealed
from parity.golden.keeping import POSITIONS, Keeping
from parity.kv_cache import FORM as KV_FORM
from parity.kv_cache import of_drafter
from parity.partial_kv import FORM
from parity.sampling import from_text, read_sampling
from parity.seam import Sampling
from parity.stages import Named, declared
from parity.validation import first_mistake

if TYPE_CHECKING:
    from parity.shown import ShownRows

SCHEMA_VERSION: Literal[2] = 2
FILE = "manifest.json"

_Line = Annotated[
    str,
    StringConstraints(
        max_length=4096, pattern="^[^\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"
    ),
]
"""A name on a line of its own: no control character, nothing that writes backwards."""
_Key = Annotated[
    str, StringConstraints(max_length=512, pattern="^p[0-9]{3,6}/r[0-9]{4,7}/[^/\u0000-\u001f\u007f-\u009f]+$")
]
_Letter = Annotated[str, StringConstraints(min_length=1, max_length=8, pattern="^[A-Za-z0-9]+$")]
_Axes = Annotated[tuple[_Letter, ...], Field(min_length=1, max_length=limits.AXES)]
_Size = Annotated[int, Field(ge=0, lt=2**48)]
_Shape = Annotated[tuple[_Size, ...], FailFast(), Field(min_length=1, max_length=limits.AXES)]
_Tokens = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=limits.TOKEN)], ...], FailFast(), Field(max_length=limits.TOKENS)
]
_Scales = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], FailFast(), Field(max_length=limits.LAYERS)
]
KVScales = dict[Literal["target", "drafter"], dict[Literal["k", "v"], _Scales]]
"""Of quantised caches, by side and part, one for each layer."""
_Vocabulary = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=limits.TOKEN)], ...] | None, FailFast(), Field(max_length=limits.TOKENS)
]
_Counts = Annotated[
    tuple[Annotated[int, Field(ge=0, le=limits.DRAFTS + 1)], ...], FailFast(), Field(max_length=limits.ROUNDS)
]
_Schedule = Annotated[
    tuple[Annotated[int, Field(ge=0, le=limits.DRAFTS)], ...], FailFast(), Field(max_length=limits.SCHEDULE)
]
_Layers = Annotated[int, Field(ge=1, le=limits.LAYERS)]

Variant = Literal["float32", "bfloat16", "bfloat16.local"]
Mode = Literal["golden", "chained", "local"]


class Record(BaseModel):
    """Base of every part: unknown fields are errors, so that a typo is not silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ProducerPart(Record):
    """Stages that only some of a producer's modules computed."""

    stages: tuple[_Line, ...]
    modules: tuple[_Line, ...]


class Producer(Record):
    """Who computed the tensors: `modules` and `sources` tell whether two dumps share source, or it changed.

    `sources` maps a module to the sha256 of its file, `source_digest` is over all of them. `notes` are its own.
    `parts` are the stages that some of the modules computed alone, out of what the others handed them.
    """

    name: _Line
    versions: dict[_Line, _Line]
    modules: tuple[_Line, ...]
    source_digest: str
    threads: int
    platform: _Line
    sources: dict[_Line, str] = {}
    notes: dict[str, str] = {}
    parts: tuple[ProducerPart, ...] = ()

    @model_validator(mode="after")
    def _parts_are_its_own(self) -> Producer:
        for part in self.parts:
            if not part.modules or set(part.modules) - set(self.modules):
                raise ValueError("the modules of a part are some of the producer's")
        return self

    def of(self, stage: str) -> Producer:
        """Who computed this stage: the modules of its part, or all of them."""
        part = next((part for part in self.parts if stage in part.stages), None)
        if part is None:
            return self
        sources = {name: source for name, source in self.sources.items() if name in part.modules}
        return self.model_copy(update={"modules": part.modules, "sources": sources, "parts": ()})


_Scalar = (
    StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | Annotated[_Line, Strict()]
)
Constant = _Scalar | Annotated[tuple[_Scalar, ...], Field(max_length=limits.LAYERS)]


class Checkpoint(Record):
    """One checkpoint folder; digests are sha256 over the named files' bytes ('' where there is none).

    `constants` are what the producer read of its config.json, by dotted key; none where it does not say.
    """

    path: _Line
    config_digest: str
    weights_digest: str
    tokenizer_digest: str = ""
    chat_template_digest: str = ""
    constants: Annotated[dict[_Line, Constant], Field(max_length=limits.LAYERS)] = {}


class Model(Record):
    """The pair of checkpoints, the drafter's family, and the layer numbers that expand the stage table.

    `draft_vocabulary` is the token of each column of the draft logits: empty where a column is its token's id, None
    where the producer does not say.
    """

    target: Checkpoint
    drafter: Checkpoint
    num_layers: _Layers
    num_drafter_layers: Annotated[int, Field(ge=0, le=limits.LAYERS)]
    family: Family = "p-eagle"
    draft_vocabulary: _Vocabulary = None

    @model_validator(mode="after")
    def _a_column_a_token(self) -> Model:
        told = self.draft_vocabulary or ()
        if len(set(told)) < len(told):
            raise ValueError("a token has one column of the draft logits, not two")
        return self


class Generation(Record):
    """What one prompt emitted: per verify round the tokens that really came out, and how many were drafts."""

    emitted: _Tokens
    acceptance_length: _Counts
    accepted_drafts: _Counts
    finish: Literal["eos", "length"]


class Parted(Record):
    """Where a run's sequence is no longer the golden's: the round, and the stage that chose another token.

    What is computed behind it is of another sequence, and is not recorded.
    """

    round: Annotated[int, Field(ge=0, lt=limits.TOKENS)]
    stage: _Line


class PromptCase(Record):
    """One prompt: its id in the prompts file, its token ids, and what it emitted freely.

    A local run generates nothing: its every stage starts from the golden's input. `parted` is there where a run could
    not be made to continue with the golden's tokens. `uniforms` are the random numbers that decided it, of a case that
    samples: see `parity.sampling.as_text`.
    """

    id: _Line
    ids: _Tokens
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


class ShownRecord(Record):
    """Stages that a run's device declares as shown; see `parity.seam.Shown`."""

    stages: _Line
    when: Literal["", "prefill", "round"] = ""
    rows: Literal["all", "last"] = "all"


def declared_shown(shown: Iterable[ShownRows]) -> tuple[ShownRecord, ...]:
    """A declaration as a manifest holds it."""
    return tuple(ShownRecord(stages=each.stages, when=each.when, rows=each.rows) for each in shown)


class KeptStages(Record):
    """Stages that a dump keeps as something less than whole: see `parity.golden.keeping`.

    `numbers` is N of a sketch, whose signs come of `seed`; of the best logits it is how many.
    """

    stages: _Line
    form: Literal["sketch", "top"]
    numbers: Annotated[int, Field(ge=1, le=limits.SKETCH)]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _seed_of_a_sketch(self) -> KeptStages:
        if self.form == "top" and self.seed:
            raise ValueError("the best logits have no seed")
        return self


class Case(Record):
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
    schedule: _Schedule = ()
    max_new_tokens: Annotated[int, Field(ge=1, le=limits.TOKENS)]
    precision: Literal["float32", "bfloat16"]
    mode: Mode
    forced: tuple[_Line, ...]
    shown: Annotated[tuple[ShownRecord, ...], Field(max_length=limits.LAYERS)] = ()
    roundings: Annotated[int, Field(ge=1)] = 1
    partial_kv: Annotated[str, StringConstraints(pattern=f"^({FORM})?$")] = ""
    kv_cache: Annotated[str, StringConstraints(pattern=f"^({KV_FORM})?$")] = ""
    kv_scales: KVScales = {}
    settled: tuple[_Line, ...] = ()
    lanes: Annotated[int, Field(ge=1, le=limits.LANES)] = 1
    layers: tuple[Annotated[int, Field(ge=0, lt=limits.LAYERS)], _Layers] | None = None
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


class TensorRow(Record):
    """One stored tensor.

    `start` is 0 except for cache stages, where rows below it are those of the round before. A tensor of a
    tensor-parallel run has one row per `rank`; `sharding` tells how they merge: an axis letter
    (concatenated along it in rank order; `G/2`: two neighbouring ranks each hold the same), `sum` (partial
    sums), or `replicated` (all alike).
    """

    key: _Key
    variant: Variant
    axes: _Axes
    dtype: _Line
    shape: _Shape
    start: _Size
    shard: _Line
    sha256: str
    rank: Annotated[int, Field(ge=0, lt=limits.RANKS)] = 0
    sharding: _Line = "replicated"

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, the rows of earlier rounds included."""
        return (self.start + self.shape[0], *self.shape[1:])

    @cached_property
    def place(self) -> tuple[int, int, str]:
        """Prompt number, round number and stage name, out of the key, which no copy of a row changes."""
        prompt, round_, stage = self.key.split("/")
        return int(prompt[1:]), int(round_[1:]), stage


class Corroboration(Record):
    """What a second reference said of this golden's stages, on so many of its prompts: agreed or disputed."""

    witness: _Line
    versions: dict[_Line, _Line]
    source_digest: str
    prompts: int
    policy: _Line
    stages: tuple[_Line, ...]
    disputed: tuple[_Line, ...]


class Manifest(Record):
    """The whole of manifest.json; `corroborations` are added by `parity corroborate`.

    `derived` says what a golden was cut from, and by what: it judges where it is named, never by default.

    `digest` is the sha256 of the file's bytes with 64 zeros in its own place.
    """

    schema_version: Literal[2] = SCHEMA_VERSION
    kind: Literal["golden", "run"]
    created: _Line
    producer: Producer
    model: Model
    case: Case
    derived: _Line = ""
    stages: Annotated[tuple[_Line, ...], FailFast()]
    tensors: Annotated[tuple[TensorRow, ...], FailFast()]
    corroborations: tuple[Corroboration, ...] = ()
    digest: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")] = UNSEALED

    @property
    def table(self) -> dict[str, Named]:
        """Every stage of its pair and case, by full name."""
        model = self.model
        kept = bool(self.case.partial_kv), of_drafter(self.case.kv_cache)
        return declared(model.num_layers, model.num_drafter_layers, model.family, *kept)

    @property
    def keeping(self) -> Keeping:
        """What it keeps of each stage."""
        return Keeping(self.case.kept, self.case.positions, self.table)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read `folder`/manifest.json.

        Raises:
            UsageError: it is missing, does not follow the schema, contradicts itself, or is not what was written.
        """
        path = folder / FILE
        if not folder.exists():
            raise UsageError(f"{folder}: there is no such folder")
        if not path.exists():
            raise UsageError(f"{folder} is no golden or run folder: {path} cannot be read")
        data = files.content(files.inside(folder, FILE, str(folder)), limits.MANIFEST_BYTES)
        return cls.checked(data, path)

    @classmethod
    def checked(cls, data: bytes, path: Path) -> Manifest:
        """The manifest in these bytes; `path` is for sentences.

        Raises:
            UsageError: see `read`.
        """
        from parity.golden.consistent import refuse_contradictions

        if data in _checked:
            return _checked[data]
        if files.values(data) > limits.VALUES:
            raise UsageError(f"{path} holds more than {limits.VALUES} values")
        try:
            manifest = cls.model_validate_json(data, strict=True)  # `true` is no 1
        except ValidationError as error:
            raise UsageError(f"{path} does not follow the golden format: {_mistake(error)}") from None
        if "schema_version" not in manifest.model_fields_set:
            raise UsageError(f"{path} does not follow the golden format: it does not say which; {OLDER}")
        if keys(manifest) != len(KEY_END.findall(data)):
            files.parsed(data, str(path))  # which refuses a key that is there twice; pydantic takes the last one
        if own_digest(data) != manifest.digest:
            raise UsageError(
                f"{path} is not what was written: its digest does not match it; make the dump anew (a program of "
                "your own that writes dumps seals them: `parity seal DIR`)"
            )
        refuse_contradictions(manifest, path)
        if len(data) <= KEPT_BYTES:
            _checked[data] = manifest
            while len(_checked) > KEPT:
                _checked.pop(next(iter(_checked)), None)
        return manifest

    def written(self) -> bytes:
        """The bytes of manifest.json, with their digest."""
        return sealed(self.model_dump(mode="json"))

    def replace(self, folder: Path) -> None:
        """Write this over `folder`/manifest.json: the old one or the new one is there, never half of one."""
        files.put(folder / FILE, self.written())


KEPT, KEPT_BYTES = 4, 2 << 20
"""How many manifests of this size a process remembers by their bytes: gates and nights open one golden many times."""

_checked: dict[bytes, Manifest] = {}


LEAVES = frozenset((str, int, float, bool, type(None)))
"""What holds no keys."""

KEY_END = re.compile(rb'"\s*:')
"""Ends every key of a JSON text; what stands in a string may look like one, never the other way round."""


def keys(value: Any) -> int:
    """Keys of the JSON objects that a value was read from, each counted once."""
    kind = type(value)
    if kind in LEAVES:
        return 0
    if kind is tuple:
        return sum(map(keys, value)) if value and type(value[0]) not in LEAVES else 0
    if kind is dict:
        return len(value) + sum(map(keys, value.values()))
    return len(value.model_fields_set) + sum(map(keys, vars(value).values()))


def key(prompt: int, round_: int, stage: str) -> str:
    """The name of a tensor in its shard."""
    return f"p{prompt:03d}/r{round_:04d}/{stage}"


OLDER = "`parity seal DIR` brings a dump of an older parity up to date"


def _mistake(error: ValidationError) -> str:
    """The first mistake, and what to do about an older version."""
    said = first_mistake(error)
    return said + (f"; {OLDER}" if said.startswith("schema_version") else "")
