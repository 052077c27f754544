"""The manifest of a dump: what was run, which stages were declared, and one row per tensor.

The JSON Schema of `Manifest` is published in docs/golden.schema.json; a test keeps it current.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from parity.errors import UsageError

SCHEMA_VERSION = 1
FILE = "manifest.json"

Variant = Literal["float32", "bfloat16", "bfloat16.local"]
Mode = Literal["golden", "chained", "local"]


class Record(BaseModel):
    """Base of every part: unknown fields are errors, so that a typo is not silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(Record):
    """Stages that only some of a producer's modules computed."""

    stages: tuple[str, ...]
    modules: tuple[str, ...]


class Producer(Record):
    """Who computed the tensors: `modules` and `sources` tell whether two dumps share source, or it changed.

    `sources` maps a module to the sha256 of its file, `source_digest` is over all of them. `notes` are its own.
    `parts` are the stages that some of the modules computed alone, out of what the others handed them.
    """

    name: str
    versions: dict[str, str]
    modules: tuple[str, ...]
    source_digest: str
    threads: int
    platform: str
    sources: dict[str, str] = {}
    notes: dict[str, str] = {}
    parts: tuple[Part, ...] = ()

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


class Checkpoint(Record):
    """One checkpoint folder; digests are sha256 over the named files' bytes ('' where there is none)."""

    path: str
    config_digest: str
    weights_digest: str
    tokenizer_digest: str = ""
    chat_template_digest: str = ""


class Model(Record):
    """The pair of checkpoints and the layer numbers that expand the stage table."""

    target: Checkpoint
    drafter: Checkpoint
    num_layers: int
    num_drafter_layers: int


class Generation(Record):
    """What one prompt emitted: per verify round the tokens that really came out, and how many were drafts."""

    emitted: tuple[int, ...]
    acceptance_length: tuple[int, ...]
    accepted_drafts: tuple[int, ...]
    finish: Literal["eos", "length"]


class PromptCase(Record):
    """One prompt: its id in the prompts file, its token ids, and what it emitted by itself.

    A local run generates nothing: its every stage starts from the golden's input.
    """

    id: str
    ids: tuple[int, ...]
    generation: Generation | None


class Case(Record):
    """What was asked for: K, the token budget, the precision and the prompts.

    `forced` are the stage templates whose tensors were replaced by the golden's while running; `roundings`
    is the number of bfloat16 runs behind each floor of a golden.
    """

    k: int
    max_new_tokens: int
    precision: Literal["float32", "bfloat16"]
    mode: Mode
    forced: tuple[str, ...]
    roundings: int = 1
    prompts_digest: str
    prompts: tuple[PromptCase, ...]


class TensorRow(Record):
    """One stored tensor.

    `start` is 0 except for cache stages, where rows below it are those of the round before. A tensor of a
    tensor-parallel run has one row per `rank`; `sharding` tells how they merge: an axis letter
    (concatenated along it in rank order; `G/2`: two neighbouring ranks each hold the same), `sum` (partial
    sums), or `replicated` (all alike).
    """

    key: str
    variant: Variant
    axes: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    start: int
    shard: str
    sha256: str
    rank: int = 0
    sharding: str = "replicated"

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor, the rows of earlier rounds included."""
        return (self.start + self.shape[0], *self.shape[1:])

    @property
    def place(self) -> tuple[int, int, str]:
        """Prompt number, round number and stage name, out of the key."""
        prompt, round_, stage = self.key.split("/")
        return int(prompt[1:]), int(round_[1:]), stage


class Corroboration(Record):
    """What a second reference said of this golden's stages, on so many of its prompts: agreed or disputed."""

    witness: str
    versions: dict[str, str]
    source_digest: str
    prompts: int
    policy: str
    stages: tuple[str, ...]
    disputed: tuple[str, ...]


class Manifest(Record):
    """The whole of manifest.json; `corroborations` are added by `parity corroborate`."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["golden", "run"]
    created: str
    producer: Producer
    model: Model
    case: Case
    stages: tuple[str, ...]
    tensors: tuple[TensorRow, ...]
    corroborations: tuple[Corroboration, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read `folder`/manifest.json.

        Raises:
            UsageError: it is missing or does not follow the schema.
        """
        path = folder / FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError:
            raise UsageError(f"{folder} is no golden or run folder: {path} cannot be read") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise UsageError(f"{path} does not follow the golden format: {field}: {first['msg']}") from None

    def replace(self, folder: Path) -> None:
        """Write this over `folder`/manifest.json: the old one or the new one is there, never half of one."""
        partial = folder / f".{FILE}.{os.getpid()}.partial"
        partial.write_text(self.model_dump_json())
        partial.replace(folder / FILE)


def key(prompt: int, round_: int, stage: str) -> str:
    """The name of a tensor in its shard."""
    return f"p{prompt:03d}/r{round_:04d}/{stage}"
