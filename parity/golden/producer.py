"""Who computed the tensors of a dump, and what a second reference said of them."""

from __future__ import annotations

from pydantic import Field, model_validator

from parity.golden.fields import Line, ManifestPart


class ProducerPart(ManifestPart):
    """Stages that only some of a producer's modules computed."""

    stages: tuple[Line, ...]
    modules: tuple[Line, ...]


class Producer(ManifestPart):
    """Who computed the tensors: `modules` and `sources` tell whether two dumps share source, or it changed.

    `sources` maps a module to the sha256 of its file, `source_digest` is over all of them. `notes` are its own.
    `parts` are the stages that some of the modules computed alone, out of what the others handed them.
    """

    name: Line
    versions: dict[Line, Line]
    modules: tuple[Line, ...]
    source_digest: str
    threads: int
    platform: Line
    sources: dict[Line, str] = Field(default={})
    notes: dict[str, str] = Field(default={})
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


class Corroboration(ManifestPart):
    """What a second reference said of this golden's stages, on so many of its prompts: agreed or disputed."""

    witness: Line
    versions: dict[Line, Line]
    source_digest: str
    prompts: int
    policy: Line
    stages: tuple[Line, ...]
    disputed: tuple[Line, ...]
