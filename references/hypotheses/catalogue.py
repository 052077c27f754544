"""What a hypothesis is, one way in which a port of speculative decoding is known to be wrong; how it is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from numpy.typing import NDArray

from parity.families import FAMILIES
from parity.stages import declared, matches

Tensors = Mapping[tuple[int, str], NDArray[Any]]
"""(round, full stage name) to a stage's tensor."""

Mutation = AbstractContextManager[None]
"""The context in which the loop computes under a hypothesis."""

SIDES = ("target", "drafter")

Pass = Literal["", "prefill", "verify"]
"""Passes of the target."""

EVERY = tuple(FAMILIES)
"""The families of drafters, as `parity.golden.checkpoints.Model.family` has them."""

PARALLEL, CHAIN, DRAFT_MODEL, LOOKUP = ("p-eagle",), ("eagle-3",), ("draft-model",), ("n-gram",)
FUSED = (*PARALLEL, *CHAIN)
"""Rows of a token with a hidden, fused in the first layer."""

STEPS, ROWS = (*CHAIN, *DRAFT_MODEL), (*FUSED, *DRAFT_MODEL)
"""A pass for each draft; rows of known tokens, whatever else stands in them."""

DENOISING = ("dflash",)
"""Known tokens are context, and masks a block behind it."""

TAPPED = (*FUSED, *DENOISING)
"""Fed by the target's residual streams."""

MODELS = (*ROWS, *DENOISING)
"""Those with weights."""


@dataclass(frozen=True)
class Fit:
    """A parameter that is fitted: between `low` and `high`, on a log scale or a linear one, whole numbers or any.

    `clean` is the value at which nothing is wrong; None where every value is. `constant` is the side and the key of
    config.json under which a golden records that value for its own checkpoints, `drafter.rms_norm_eps`; `{side}` is
    filled in.
    """

    low: float
    high: float
    clean: float | None
    log: bool = False
    whole: bool = False
    constant: str = ""


FACTOR = Fit(0.1, 10.0, clean=1.0, log=True)


class Part(NamedTuple):
    """One of the equal parts of a layer, by number, and how many times as large as it should be it is."""

    layer: int
    number: int
    factor: float

    def __str__(self) -> str:
        words = {0.0: "is missing", 2.0: "counts twice"}
        factor = f"{self.factor:.4g}" if abs(self.factor - 1) >= 5e-4 else f"{self.factor:.7g}"
        size = words.get(self.factor, f"is {factor} times as large as it should be")
        return f"{self.number} of layer {self.layer} {size}"


@dataclass(frozen=True)
class Hypothesis:
    """One assumption about what is wrong, as a mutation of the references.

    Attributes:
        id: the catalogue's id of the defect.
        says: what is wrong, with `{value}` for the parameter.
        stages: stage globs where it can show first in a local comparison.
        apply: `apply(loop, value)` is the context in which a `parity.references.drafter_loop.DrafterLoop` computes
            under it; it raises `NotApplicable` where this pair of checkpoints gives it nothing to change.
        values: discrete values to try, the most usual first.
        fit: a parameter to fit beside them.
        infer: reads the value out of (device, golden) tensors; None where they do not tell.
        layered: `value` may also be "all", "even", "odd", the number of a layer, or several of them.
        fix: the usual place of the fix.
        seen: where it was met in public.
        cost: 1 shows in one stage, 2 needs verify rounds, 3 needs another prompt or a free generation.
        drafters: the families of drafters that can be wrong in this way, as far as they have its stages.
        passes: the passes of the target that are wrong, where the others are right.
        part: the side and the key of config.json that counts the equal parts of a layer, as in `Fit.constant`: one of
            them is of another size, `value` says which and of what size.
    """

    id: str
    says: str
    stages: tuple[str, ...]
    apply: Callable[[Any, Any], Mutation]
    values: tuple[Any, ...] = (None,)
    fit: Fit | None = None
    infer: Callable[[Tensors, Tensors], Any] | None = None
    layered: bool = False
    fix: str = ""
    seen: tuple[str, ...] = ()
    cost: int = 1
    drafters: tuple[str, ...] = EVERY
    passes: Pass = ""
    part: str = ""

    @property
    def defect(self) -> str:
        """The catalogue's id, whichever model it is in: `-drafter` at the end of `id` says that it is the drafter."""
        return self.id.removesuffix("-drafter")

    def about(self, family: str) -> bool:
        """Whether drafters of a family can be wrong in this way: one of its stages is theirs."""
        names = stages_of(family)
        return family in self.drafters and any(matches(stage, name) for stage in self.stages for name in names)

    def sized(self, layer: int, number: int, factor: float) -> Part:
        """The value for one of the parts."""
        return Part(layer, number, factor)

    def describe(self, value: Any = None) -> str:
        """What is wrong, with this value of the parameter; a fitted one to seven digits, as far as it is known."""
        where = {"all": "", "even": " in even layers", "odd": " in odd layers"}
        if self.layered:
            return self.says + (where[value] if isinstance(value, str) else f" in {_numbered(value)}")
        return self.says.format(value=float(f"{value:.7g}") if isinstance(value, float) else value)


def _numbered(layers: int | tuple[int, ...]) -> str:
    """One layer, a run of layers, or several, in words."""
    if isinstance(layers, int):
        return f"layer {layers}"
    first, *_, last = layers
    if len(layers) > 2 and layers == tuple(range(first, last + 1)):
        return f"layers {first} to {last}"
    return f"layers {', '.join(map(str, layers[:-1]))} and {last}"


def apart(
    hypothesis: Hypothesis, name: str, within: Callable[..., Mutation], where: str, fix: str, **changes: Any
) -> Hypothesis:
    """A hypothesis for some rows alone, at its discrete values: `within(loop, value, apply)` applies it to those.

    Args:
        name: its id.
        where: what is wrong there, behind what the hypothesis says.
        fix: the place of the fix, before the hypothesis' own.
        changes: other fields that differ.
    """
    return replace(
        hypothesis,
        id=name,
        says=f"{hypothesis.says}, {where}",
        apply=partial(within, apply=hypothesis.apply),
        fit=None,
        infer=None,
        fix=f"{fix}: {hypothesis.fix}",
        **changes,
    )


@cache
def stages_of(family: str) -> tuple[str, ...]:
    """The stages of a family, of few layers."""
    return tuple(declared(2, 2, family, pages=True, quantised=True))


class Details(TypedDict, total=False):
    """The fields of a hypothesis by name; a mapping from `SIDES` gives each side its own."""

    stages: tuple[str, ...] | Mapping[str, tuple[str, ...]]
    values: Iterable[Any]
    fit: Fit
    infer: Callable[[Tensors, Tensors], Any] | Mapping[str, Callable[[Tensors, Tensors], Any] | None]
    layered: bool
    fix: str | Mapping[str, str]
    seen: tuple[str, ...] | Mapping[str, tuple[str, ...]]
    cost: int | Mapping[str, int]
    drafters: tuple[str, ...] | Mapping[str, tuple[str, ...]]
    part: str


Changes = TypeVar("Changes", bound=Callable[..., Any])


class Family:
    """Hypotheses of one kind, in the order of the catalogue; each is declared on the function that carries it out.

    Args:
        through: the mutation that the functions are parts of: `through(loop, value, change=function)`. Where there is
            none a function is a mutation itself, `function(loop, value)`.
        by_side: all of the target's stand before all of the drafter's.
        common: what they have in common, unless one says otherwise. `layered` alone stands for values=("all",) too.
    """

    def __init__(
        self, through: Callable[..., Mutation] | None = None, by_side: bool = False, **common: Unpack[Details]
    ):
        self.through, self.by_side, self.common = through, by_side, common
        self._declared: list[tuple[str, Hypothesis]] = []

    def part(self, through: Callable[..., Mutation] | None = None, **common: Unpack[Details]) -> Family:
        """Hypotheses among this family's with something else in common; of its mutation where no other is given."""
        together: Details = {**self.common, **common}
        family = Family(through or self.through, self.by_side, **together)
        family._declared = self._declared
        return family

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """All that were declared."""
        sides = SIDES if self.by_side else ("",)
        return [hypothesis for side in sides for own, hypothesis in self._declared if own.startswith(side)]

    def __call__(self, id: str, says: str, **details: Unpack[Details]) -> Callable[[Changes], Changes]:
        """Declare the decorated function as a hypothesis."""

        def enter(function: Changes) -> Changes:
            self._enter(id, says, "target", self._applied(function), details)
            return function

        return enter

    def both(
        self, id: str | Mapping[str, str], says: str, sides: Iterable[str] = SIDES, **details: Unpack[Details]
    ) -> Callable[[Changes], Changes]:
        """Declare the decorated function, which takes a `side` as well, as the same hypothesis about each side.

        `{side}` in `id` and in stages stands for the side; without it the drafter's id ends in "-drafter".
        """

        if isinstance(values := details.get("values"), Iterator):
            details["values"] = tuple(values)  # each side reads them

        def enter(function: Changes) -> Changes:
            for side in sides:
                self._enter(_id_of(id, side), f"{side}: {says}", side, self._applied(function, side=side), details)
            return function

        return enter

    def _applied(self, function: Callable[..., Any], **options: str) -> Callable[..., Mutation]:
        if self.through is None:
            return partial(function, **options)
        return partial(self.through, change=function, **options)

    def _enter(self, id: str, says: str, side: str, apply: Callable[..., Mutation], details: Details) -> None:
        fields = {name: _of_side(value, side) for name, value in {**self.common, **details}.items()}
        values = tuple(fields.pop("values", ("all",) if fields.get("layered") else (None,)))
        stages = tuple(stage.replace("{side}", side) for stage in fields.pop("stages"))
        if fit := fields.get("fit"):
            fields["fit"] = replace(fit, constant=fit.constant.replace("{side}", side))
        fields["part"] = fields.get("part", "").replace("{side}", side)
        self._declared.append((side, Hypothesis(id, says, stages, apply, values, **fields)))


def _id_of(id: str | Mapping[str, str], side: str) -> str:
    if isinstance(id, Mapping):
        return id[side]
    return id.replace("{side}", side) + ("-drafter" if side == "drafter" and "{side}" not in id else "")


def _of_side(value: Any, side: str) -> Any:
    return value[side] if isinstance(value, Mapping) and set(value) == set(SIDES) else value
