"""What a field of a manifest may hold: text, sizes and token ids within the limits of `parity.limits`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, StringConstraints

from parity import limits

Line = Annotated[
    str,
    StringConstraints(
        max_length=4096, pattern="^[^\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$"
    ),
]
"""A name on a line of its own: no control character, nothing that writes backwards."""
TensorKey = Annotated[
    str, StringConstraints(max_length=512, pattern="^p[0-9]{3,6}/r[0-9]{4,7}/[^/\u0000-\u001f\u007f-\u009f]+$")
]
Letter = Annotated[str, StringConstraints(min_length=1, max_length=8, pattern="^[A-Za-z0-9]+$")]
Axes = Annotated[tuple[Letter, ...], Field(min_length=1, max_length=limits.AXES)]
Size = Annotated[int, Field(ge=0, lt=2**48)]
Shape = Annotated[tuple[Size, ...], FailFast(), Field(min_length=1, max_length=limits.AXES)]
Tokens = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=limits.TOKEN)], ...], FailFast(), Field(max_length=limits.TOKENS)
]
Scales = Annotated[
    tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], FailFast(), Field(max_length=limits.LAYERS)
]
KVScales = dict[Literal["target", "drafter"], dict[Literal["k", "v"], Scales]]
"""Of quantised caches, by side and part, one for each layer."""
Vocabulary = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=limits.TOKEN)], ...] | None, FailFast(), Field(max_length=limits.TOKENS)
]
RoundCounts = Annotated[
    tuple[Annotated[int, Field(ge=0, le=limits.DRAFTS + 1)], ...], FailFast(), Field(max_length=limits.ROUNDS)
]
Schedule = Annotated[
    tuple[Annotated[int, Field(ge=0, le=limits.DRAFTS)], ...], FailFast(), Field(max_length=limits.SCHEDULE)
]
LayerCount = Annotated[int, Field(ge=1, le=limits.LAYERS)]

Variant = Literal["float32", "bfloat16", "bfloat16.local"]
Mode = Literal["golden", "chained", "local"]


class ManifestPart(BaseModel):
    """Base of every part: unknown fields are errors, so that a typo is not silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
