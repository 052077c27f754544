"""Name maps: ordered rows from a tool's names to stages, as TOML; the first match wins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError, model_validator

from parity import limits
from parity.errors import UsageError
from parity.files import toml
from parity.golden.ranks import REPLICATED, SUM
from parity.taps import in_of
from parity.validation import first_mistake

NUMBERED = re.compile(r"(\w+)\[(.+)\]")


def residual(stage: str, name: str, layers: int) -> str:
    """The stage that a numbered stream is: `in_of[k]` is `target.layers.{k-1}.out`, and `in_of[0]` the embeddings.

    Raises:
        UsageError: the numbering is unknown, or a target of so many layers has no such stream.
    """
    numbered = NUMBERED.fullmatch(stage)
    if not numbered:
        return stage
    if not numbered[2].isdecimal() or len(numbered[2]) > 9:
        raise UsageError(f"{name}: {stage} names no layer")
    (entered,) = in_of(numbered[1], [int(numbered[2])], layers)
    return f"target.layers.{entered - 1}.out" if entered else "target.embed"


FIELD = re.compile(r"\{(\w+)([+-]\d+)?(?::0(\d))?\}")


class MapPart(BaseModel):
    """Base of every part: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@cache
def pattern(text: str) -> Any:
    """A regular expression by an engine that takes time in proportion to the name: no lookaround, no back reference.

    Raises:
        ValueError: it is none of RE2's.
    """
    import re2

    options = re2.Options()
    options.max_mem, options.log_errors = limits.PATTERN_BYTES, False
    try:
        return re2.compile(text, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise ValueError(f"{text!r} is no regular expression (RE2): {said}") from None


class MapRow(MapPart):
    """One row of a map: `name`, and either where such a tensor belongs or why it belongs nowhere.

    Texts may name the groups of `name` (`(?P<l>\\d+)` is `{l}`), `{step}`, the tool's own count of passes, and `{L}`,
    the number of target layers; a whole number may be added: `{step-1}`.

    Args:
        name: a regular expression (RE2) over the tool's whole name.
        stage: the stage's full name; `in_of[{k}]`, `out_of[{k}]`, `hf[{k}]`, `vllm[{k}]`, … are the residual stream in
            a numbering of `parity.taps`.
        ignore: why the tensor is no stage, instead of `stage`.
        round: prefill is 0; a group of that name, else the tool's step.
        when: the row is of prefill only, or of the rounds behind it only.
        prompt: the prompt's number in the golden; a group of that name, else 0.
        axes: of the tool's tensor, the stage's by default; `B` is a batch axis of size 1 (or see `prompts`), `N*D`
            two axes in one.
        prompts: the prompt of each entry along `B`.
        sharding: how ranks merge: an axis letter, `sum` or `replicated`.
        rows: the part of the first axis of the stage that belongs there, as a slice `first:end`.
        padded: rows behind those that the golden has are padding, and cut off.
        also: rows further down may take the same tensor as well.
        optional: the row may match nothing.
        bits: what the tensor's 16-bit unsigned integers are the bits of.
    """

    name: str
    stage: str = ""
    ignore: str = ""
    round: str = ""
    when: Literal["prefill", "round"] | None = None
    prompt: str = ""
    axes: tuple[str, ...] = ()
    prompts: tuple[NonNegativeInt, ...] = ()
    sharding: str = REPLICATED
    rows: str = Field(default=":", pattern=r"^-?\d*:-?\d*$")
    padded: bool = False
    also: bool = False
    optional: bool = False
    bits: Literal["bfloat16"] | None = None

    @model_validator(mode="after")
    def _whole(self) -> MapRow:
        groups = pattern(self.name).groupindex
        if bool(self.stage) == bool(self.ignore):
            raise ValueError(f"row {self.name!r} needs one of stage and ignore")
        for text in (self.stage, self.round, self.prompt):
            for field in (found[1] for found in FIELD.finditer(text)):
                if field not in (*groups, "step", "L"):
                    raise ValueError(f"row {self.name!r} names {{{field}}}, which is no group of it")
        if self.prompts and "B" not in self.axes:
            raise ValueError(f"row {self.name!r} has prompts without an axis B")
        return self

    @property
    def slice(self) -> slice:
        """`rows` as a slice."""
        first, _, end = self.rows.partition(":")
        return slice(int(first) if first else None, int(end) if end else None)

    def splits(self) -> bool:
        """Whether the ranks hold different numbers."""
        return self.sharding not in (SUM, REPLICATED)


class Made(MapPart):
    """How the dump was made, as far as its files do not say.

    Args:
        name: who made it.
        precision: what it computed in; float32 unless a tensor is narrower.
        mode: `local` where every stage was started from the golden's input.
        forced: templates of the stages whose tensors were replaced by the golden's while it ran.
        shown: globs of the stages that the dump has, of every prompt and round; every stage where absent.
        ranks: of the tensor-parallel run; as many as there are files of, where absent.
    """

    name: str = ""
    precision: Literal["float32", "bfloat16"] | None = None
    mode: Literal["chained", "local"] = "chained"
    forced: tuple[str, ...] = ()
    shown: tuple[str, ...] = Field(default=(), max_length=limits.LAYERS)
    ranks: int | None = Field(default=None, ge=1)


class NameMap(MapPart):
    """A whole map file."""

    run: Made = Made()
    rows: tuple[MapRow, ...] = Field(alias="row", min_length=1, max_length=limits.ROWS)


def is_number(value: Any) -> bool:
    """Whether this is a whole number of a place: nine digits are more than there are rounds, prompts and ranks."""
    return str(value).isdecimal() and len(str(value)) < 10


def fill(text: str, values: Mapping[str, Any], name: str) -> str:
    """A row's text with its fields replaced, a numbered stream by the stage that it is.

    Raises:
        UsageError: a field has no value for this tensor, or is no number where one is added.
    """
    return residual(filled(text, values, name), name, values["L"])


def filled(text: str, values: Mapping[str, Any], name: str) -> str:
    """A row's text with its fields replaced: `{l}`, `{l+1}`, `{l:02}` in two digits.

    Raises:
        UsageError: as `fill`.
    """

    def value(field: re.Match[str]) -> str:
        held, added, digits = values.get(field[1]), field[2], int(field[3] or 0)
        if held is None or ((added or digits) and not is_number(held)):
            raise UsageError(f"{name}: {field[0]} has no value; take it out of the name with a group")
        plain = str(int(held)) if is_number(held) else str(held)
        return f"{int(plain) + int(added or 0):0{digits}}" if added or digits else plain

    return FIELD.sub(value, text)


def shipped() -> dict[str, Path]:
    """The maps that ship, by name."""
    return {path.stem: path for path in sorted(Path(str(files("parity") / "imports" / "maps")).glob("*.toml"))}


def read_map(named: str | None) -> NameMap:
    """Read a map by file or name; without one, names must be stages already.

    Raises:
        UsageError: it cannot be read, or a field is wrong.
    """
    named = named or "stages"
    source = shipped().get(named, Path(named))
    if not source.exists():
        raise UsageError(f"--map {named} cannot be read: it is neither a file nor one of {', '.join(shipped())}")
    try:
        return NameMap.model_validate(toml(source, "--map")[0])
    except ValidationError as error:
        raise UsageError(f"--map {source}: {first_mistake(error)}") from None
