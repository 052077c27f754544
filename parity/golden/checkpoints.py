"""The pair of checkpoints that a dump is of."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict, StrictBool, StrictInt, model_validator

from parity import limits
from parity.families import Family
from parity.golden.fields import LayerCount, Line, ManifestPart, Vocabulary

_Scalar = StrictBool | StrictInt | Annotated[float, Field(strict=True, allow_inf_nan=False)] | Annotated[Line, Strict()]
Constant = _Scalar | Annotated[tuple[_Scalar, ...], Field(max_length=limits.LAYERS)]


class Checkpoint(ManifestPart):
    """One checkpoint folder; digests are sha256 over the named files' bytes ('' where there is none).

    `constants` are what the producer read of its config.json, by dotted key; none where it does not say.
    """

    path: Line
    config_digest: str
    weights_digest: str
    tokenizer_digest: str = ""
    chat_template_digest: str = ""
    constants: Annotated[dict[Line, Constant], Field(max_length=limits.LAYERS)] = Field(default={})


class Model(ManifestPart):
    """The pair of checkpoints, the drafter's family, and the layer numbers that expand the stage table.

    `draft_vocabulary` is the token of each column of the draft logits: empty where a column is its token's id, None
    where the producer does not say.
    """

    target: Checkpoint
    drafter: Checkpoint
    num_layers: LayerCount
    num_drafter_layers: Annotated[int, Field(ge=0, le=limits.LAYERS)]
    family: Family = "p-eagle"
    draft_vocabulary: Vocabulary = None

    @model_validator(mode="after")
    def _a_column_a_token(self) -> Model:
        told = self.draft_vocabulary or ()
        if len(set(told)) < len(told):
            raise ValueError("a token has one column of the draft logits, not two")
        return self
