"""Which part of a stage's computation is wrong, read from the golden's and the device's rows alone.

No list of defects: wrong.py holds the wrong rows, and each reading is a model of their error with few numbers of its
own: what the elements hold (elements.py, mixed.py), by what rule ids are chosen (chosen.py, chosen_sets.py) and numbers
made (by_rule.py), how heads are turned (rotations.py), what other stages hold (other_stages.py), what a token brings
along (by_token.py), what a product adds up (products.py): its columns (columns.py), weights (weights.py, drawn.py) and
roundings (roundings.py), other rows of it (other_rows.py) and parts each in a way of its own (each_part.py), the keys
that attention saw (keys.py), what they weigh (key_weights.py) and how their pairs turn (frequencies.py), and what is
off in no row alone (faint.py). A reading is named where it leaves nothing but noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from parity.compare.facts import Facts
from parity.compare.origins import held_instead
from parity.compare.relations import relation
from parity.compare.rows import stage_rows
from parity.diagnose.clock import TimeIsUp
from parity.diagnose.components.by_token import in_tokens
from parity.diagnose.components.elements import in_elements
from parity.diagnose.components.faint import in_faint
from parity.diagnose.components.other_stages import in_other_stages
from parity.diagnose.components.products import StageProduct, in_products, led_back
from parity.diagnose.components.rotations import in_rotations
from parity.diagnose.components.whole_numbers import in_whole_numbers
from parity.diagnose.components.wrong import CLOSE, DEAR, NEAR, SURE, Component, WrongRows, preferred
from parity.golden.views import DumpView, TrustedGolden

__all__ = ["Component", "StageProduct", "components"]

FEW = 3
"""Fewer wrong rows may be those that stand out by chance of what is off in all rows by less."""

SIMPLE = 16
"""A reading of more numbers of its own may be near anything: it has to leave nothing."""

NEARLY_ALL, AGAIN = 0.999, 2.0
"""Nor may it leave more than the noise of a rounding or two more, of a large error: what is computed from rounded
numbers is rounded again."""

ENOUGH = (True, 1 - 10 * DEAR)
"""What leaves nothing and is preferred so much: of the groups that ask for more none could gain more than ten numbers
are worth."""


def components(
    golden: TrustedGolden,
    run: DumpView,
    stage: str,
    products: Callable[[], Sequence[StageProduct]] = tuple,
    check: Callable[[], None] = lambda: None,
    sure: np.ndarray | None = None,
) -> tuple[Component, ...]:
    """What explains the error of a stage's wrong rows: the first that leaves nothing, else the nearest, else nothing.

    Args:
        golden, run: of one prompt where there are products.
        products: makes what the stage's rows are a product of at the golden's inputs, which are the run's but for
            noise; asked for where the tensors alone do not tell.
        check: raises TimeIsUp between two readings: what was found by then is said.
        sure: bool [R], the first of the stage's rows that count; all where it is None.
    """
    named = golden.declared.get(stage)
    rows = stage_rows(golden, run, named) if named and not (golden.keeps or run.keeps) else None
    if named is None or rows is None:
        return ()
    if named.stage.exact:
        return in_whole_numbers(golden, run, rows)
    wrong = WrongRows.of(rows, run.manifest.case.precision, among=None if sure is None else sure[: len(rows.golden)])
    held = held_instead(golden, run, named) if wrong is not None else None
    if wrong is None or (len(wrong.numbers) < FEW and not (held and held.by_most)):
        every = WrongRows.of(rows, run.manifest.case.precision, whole=True)
        faint = _faint(every, products, check)
        if faint or wrong is None:
            return faint
    bad = np.isin(np.arange(len(rows.golden)), wrong.numbers)
    judged = ~WrongRows.unclear(rows, run.manifest.case.precision) | bad
    judged &= True if sure is None else sure[: len(judged)]
    where = "" if (judged & ~bad).sum() < FEW else relation(bad, judged, Facts.of(golden, rows))
    if held and held.by_all:
        return (Component(held.says, 1.0, None, where),)
    found: list[Component] = []
    with suppress(TimeIsUp):
        for readings in _readings(wrong, golden, run.manifest.case.mode, products, len(rows.golden), check):
            for one in readings:
                found += [replace(one, where=where)] if one is not None and _is_near(one) else []
                check()
                if found and preferred(found[-1]) > SURE:
                    break
            if max(map(preferred, found), default=(False, 0.0)) > ENOUGH:
                break
    told = held and (held.by_most or (not found and held.share >= PARTLY))
    if held and told and not any(one.whole for one in found):
        return (Component(held.says, held.share, None, where),)
    return tuple(sorted(found, key=preferred, reverse=True)[:1])


def _faint(
    every: WrongRows | None, products: Callable[[], Sequence[StageProduct]], check: Callable[[], None]
) -> tuple[Component, ...]:
    """What is off by so little that no row is wrong alone; nothing once the time is up."""
    made = products() if every is not None else ()
    whole = [product for product in made if every is not None and len(product.x) == len(every.numbers)]
    if every is None or not whole:
        return ()
    with suppress(TimeIsUp):
        best = in_faint(every, whole[0], check)
        return (best,) if best else ()
    return ()


PARTLY = 0.5
"""The share of the wrong rows that hold others' values from which this is said where nothing else is: what the rest
holds may be shown by no stage."""

LEAST = 0.5
"""Of an error hardly above its noise almost anything leaves no more than noise: a part explains half of it at least."""


def _is_near(one: Component) -> bool:
    if one.explained < LEAST:
        return False
    near = one.rest is not None and one.explained >= NEAR and one.rest <= CLOSE
    again = one.explained >= NEARLY_ALL and one.rest is not None and one.rest <= AGAIN
    return one.whole or (near and (one.numbers <= SIMPLE or again))


def _readings(
    wrong: WrongRows,
    golden: TrustedGolden,
    mode: str,
    products: Callable[[], Sequence[StageProduct]],
    count: int,
    check: Callable[[], None],
) -> Iterator[Iterable[Component | None]]:
    """All of them in groups, those that ask for least first."""
    for one in in_elements(wrong):
        yield (one,)
    yield in_rotations(wrong)
    yield (in_other_stages(wrong, golden, mode),)
    yield (in_tokens(wrong, golden),)
    for product in products():
        own = wrong.at(product.places) if product.places is not None else wrong if len(product.x) == count else None
        behind = led_back(own, product) if own is not None else None
        if behind is not None and behind is not own:
            for one in in_elements(behind):
                yield (one and replace(one, says=f"{product.inside}: {one.says}"),)
        if behind is not None:
            yield in_products(behind, product, check)
