"""What a run shows: the stages that its device declares as shown, and of each the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, get_args

from parity.errors import UsageError
from parity.kv_cache import of_drafter
from parity.limits import LAYERS
from parity.seam import (
    Description,
    Rows,
    Shown,
    When,
)
from parity.stages import (
    ACCEPT_EMITTED,
    ACCEPT_LENGTH,
    DRAFT_TOKENS,
    PREFILL,
    ROUND,
    TARGET_TOKENS,
    VERIFY_TOKENS,
    Named,
    declared,
    matches,
)

RETURNED: Mapping[str, Rows] = {
    TARGET_TOKENS: "last",
    DRAFT_TOKENS: "all",
    VERIFY_TOKENS: "all",
    ACCEPT_LENGTH: "all",
    ACCEPT_EMITTED: "all",
}
"""What the verbs return: shown by every device, whatever it hands to a tap."""


class ShownRows(Protocol):
    """See `parity.seam.Shown`, which a manifest repeats."""

    @property
    def stages(self) -> str: ...
    @property
    def when(self) -> When: ...
    @property
    def rows(self) -> Rows: ...


class View:
    """What is shown of each stage of a pair of models.

    Args:
        shown: what a device declares; nothing stands for every stage whole.
        declared: the pair's stages.

    Raises:
        UsageError: a glob matches no stage, or one row is declared of a cache, which is shown whole.
    """

    def __init__(self, shown: Iterable[ShownRows], declared: Mapping[str, Named]):
        self._rows: dict[tuple[str, str], Rows] = {}
        self.declared, shown = declared, tuple(shown)
        if not shown:
            self._rows = {(name, when): "all" for name, named in declared.items() for when in named.stage.when}
            return
        for each in shown:
            self._add(each)

    def _add(self, each: ShownRows) -> None:
        names = [name for name in self.declared if matches(each.stages, name)]
        if not names:
            raise UsageError(f"{each.stages[:80]!r} is declared as shown: no stage of this pair has that name")
        occurs = False
        for name in names:
            stage = self.declared[name].stage
            if stage.cache and each.rows == "last":
                raise UsageError(f"the last row of {name} is declared as shown: a cache is shown whole")
            for when in (when for when in stage.when if each.when in ("", when)):
                occurs = True
                if self._rows.get((name, when)) != "all":
                    self._rows[name, when] = each.rows

        if not occurs:
            raise UsageError(f"{each.stages[:80]!r} is declared as shown in {each.when}: it never occurs there")

    def with_whole(self, names: Iterable[str]) -> View:
        """The same, and all rows of these stages wherever they occur."""
        more = View((), self.declared)
        more._rows = {
            **self._rows,
            **{(name, when): "all" for name in names for when in self.declared[name].stage.when},
        }
        return more

    def rows(self, stage: str, round_: int) -> Rows | None:
        """Which rows of a stage are shown in a round; None where none is."""
        return self._rows.get((stage, ROUND if round_ else PREFILL))

    def shows(self, stage: str) -> bool:
        """Whether a stage is shown in any round."""
        return (stage, PREFILL) in self._rows or (stage, ROUND) in self._rows

    def lacking(self) -> dict[str, list[str]]:
        """`prefill` and `round` to the stages that are shown in the other alone, though they occur in both."""
        found: dict[str, list[str]] = {PREFILL: [], ROUND: []}
        for name, _ in self._rows:
            for when in self.declared[name].stage.when:
                if (name, when) not in self._rows:
                    found[when].append(name)
        return found

    def whole(self, stage: str) -> bool:
        """Whether every row of a stage is shown wherever it occurs."""
        return all(self._rows.get((stage, when)) == "all" for when in self.declared[stage].stage.when)


def stages_of(says: Description) -> dict[str, Named]:
    """The stages of a device of this description."""
    kept = bool(says.partial_kv), of_drafter(says.kv_cache)
    return declared(says.num_layers, says.num_drafter_layers, says.family, *kept)


def check_declarations(says: Description, name: str) -> None:
    """What a device declares of itself is of the types of `parity.seam.Description`.

    Raises:
        UsageError: which is not.
    """
    said = f"--device {name} describes itself with"
    if not isinstance(says.name, str) or not says.name.isprintable():
        raise UsageError(f"{said} a name that is no line of printable text")
    for name_ in ("transactional", "varies_k", "samples", "own_numbers"):
        if not isinstance(getattr(says, name_), bool):
            raise UsageError(f"{said} {name_}={getattr(says, name_)!r}: it is True or False")
    shown, forcible = says.shown, says.forcible
    if not isinstance(shown, tuple | list) or len(shown) > LAYERS:
        raise UsageError(f"{said} shown of type {type(shown).__name__}: it takes up to {LAYERS} parity.seam.Shown")
    for each in shown:
        known = isinstance(each, Shown) and isinstance(each.stages, str)
        if not known or each.when not in get_args(When) or each.rows not in get_args(Rows):
            raise UsageError(f"{said} {each!r:.120} as shown: it takes parity.seam.Shown(stages, when, rows)")
    if not isinstance(forcible, tuple | list) or not all(isinstance(glob, str) for glob in forcible):
        raise UsageError(f"{said} forcible={forcible!r:.80}: it takes globs of stages")
    names = stages_of(says)
    for glob in forcible:
        if not any(matches(glob, stage) for stage in names):
            raise UsageError(f"{said} forcible {glob[:80]!r}: no stage of this pair has that name")


def with_returned(shown: Sequence[Shown], declared: Mapping[str, Named], loop: bool = False) -> tuple[Shown, ...]:
    """What a device declares, and what its verbs return; nothing, for every stage, stays nothing.

    Args:
        loop: it runs as one loop, whose host may not see what the target chose behind a rejected draft: those tokens
            are shown where they are declared.

    Raises:
        UsageError: see `View`.
    """
    view = View(shown, declared)
    due = [name for name in RETURNED if name in declared and not (loop and name == VERIFY_TOKENS)]
    return (*shown, *(Shown(name, rows=RETURNED[name]) for name in due if not view.shows(name))) if shown else ()


VIEWS: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "layer-kernels": (
        "target.embed",
        "target.layers.*.out",
        "target.logits",
        "verify.logits",
        "drafter.taps",
        "drafter.layers.*.out",
        "drafter.logits",
        "kv.*",
    ),
    "layer-outputs": (
        "target.layers.*.out",
        "target.logits",
        "verify.logits",
        "drafter.layers.*.out",
        "drafter.logits",
    ),
    "tokens": tuple(RETURNED),
}
"""What ports show, by name: every stage; what a host sees between one kernel per layer; layer outputs and logits;
what the verbs return and nothing else."""


PASSES: tuple[When, ...] = ("prefill", "round")
Sizes = Mapping[tuple[int, int, str], int]
"""Prompt, round and full stage name of tensors, to how many rows each has."""


def there(sizes: Sizes, golden: Sizes, declared: Mapping[str, Named]) -> tuple[Shown, ...]:
    """What a dump holds, as a declaration of all that it shows: stages by prefill and round, whole or the last row.

    Args:
        sizes: the dump's.
        golden: the golden's, whose rows say whether one row is all of them.
    """
    found: dict[tuple[str, When, Rows], list[str]] = {}
    for name, named in declared.items():
        for when in (when for when in PASSES if when in named.stage.when):
            rounds = [place for place in sizes if place[2] == name and (place[1] > 0) == (when == ROUND)]
            if rounds:
                single = all(sizes[place] == 1 for place in rounds)
                last = single and not named.stage.cache and any(golden.get(place, 1) > 1 for place in rounds)
                found.setdefault((named.stage.template, when, "last" if last else "all"), []).append(name)
    return _by_template(found, declared)


def narrowed(
    shown: Sequence[Shown], globs: Sequence[str], declared: Mapping[str, Named], loop: bool = False
) -> tuple[Shown, ...]:
    """What a device declares, of stages of these globs alone; all of them where it shows every stage.

    Args:
        shown: what the device declares.
        loop: see `with_returned`.

    Raises:
        UsageError: see `View`; or it shows none of these stages.
    """
    asked = tuple(Shown(glob) for glob in globs)
    if not shown:
        return asked
    own, view = View(with_returned(shown, declared, loop), declared), View(asked, declared)
    found: dict[tuple[str, When, Rows], list[str]] = {}
    for name, named in declared.items():
        for when in (when for when in PASSES if when in named.stage.when and view.shows(name)):
            if rows := own.rows(name, when == ROUND):
                found.setdefault((named.stage.template, when, rows), []).append(name)
    if not found:
        raise UsageError(f"show={'+'.join(globs)}: the device shows none of these stages")
    return _by_template(found, declared)


def _by_template(
    found: Mapping[tuple[str, When, Rows], Sequence[str]], declared: Mapping[str, Named]
) -> tuple[Shown, ...]:
    """Stages of a template, when and which rows, as declarations: one where they are all of its layers."""
    of_template = Counter(named.stage.template for named in declared.values())
    return tuple(
        Shown(stages, when, rows)
        for (template, when, rows), names in found.items()
        for stages in ([template.replace("{l}", "*")] if len(names) == of_template[template] else names)
    )
