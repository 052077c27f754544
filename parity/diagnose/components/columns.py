"""Columns of a product's input in which an error lies: left out, or met by another weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from parity.diagnose.components.parts import INSIDE, Parts
from parity.diagnose.components.wrong import Component, WrongRows, best_of, ranges_of

RUNS = 4
"""Runs of neighbouring columns that are tried."""

NOTHING = 0.1
"""A factor this near to 0 is none: one of as many as there are columns is fitted worse than one of all."""

WIDE = 1 << 12
"""Input columns of a part over which all runs are tried: a table of 128 MB."""


def left_out(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Component | None:
    """A run of input columns that is left out, or counts twice, of one part, of all parts of its width alike, or over
    several parts.

    The best of all runs, by sums over a table of products.
    """
    return best_of(_run(wrong, x, weight, parts, more) for more in MORE)


MORE = {-1: "are left out", 1: "count twice"}
"""By how much more than once a run of columns may count."""


def _run(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts, more: int) -> Component | None:
    error = -more * wrong.error[:, wrong.columns]
    gains = {
        part: _gains(x[:, part[1] : part[2]], weight[:, part[1] : part[2]], error)
        for part in parts
        if 1 < part[2] - part[1] <= WIDE
    }
    across = _across(wrong, x, weight, parts, more) if len(parts) > 1 and x.shape[1] <= WIDE else None
    return best_of((_of_one(wrong, x, weight, gains, more), *_of_all_alike(wrong, x, weight, gains, more), across))


Part = tuple[str, int, int]


def _gains(x: np.ndarray, weight: np.ndarray, error: np.ndarray) -> np.ndarray:
    """By how much the squared error changes where the columns from one up to another are left out: [D + 1, D + 1]."""
    gram = (x.T @ x) * (weight.T @ weight)
    met = np.concatenate(([0.0], np.cumsum(((x.T @ error) * weight.T).sum(axis=1))))
    table = np.zeros((x.shape[1] + 1,) * 2)
    table[1:, 1:] = gram.cumsum(axis=0).cumsum(axis=1)
    whole = np.diag(table)
    gain = 2 * (met[None] - met[:, None]) + (whole[None] - table - table.T + whole[:, None])
    return np.where(np.arange(len(gain))[:, None] < np.arange(len(gain)), gain, np.inf)


def _best_run(gain: np.ndarray) -> tuple[int, int, float]:
    """The run of columns that changes most: its first, the one behind its last, and the change."""
    start, end = map(int, np.unravel_index(gain.argmin(), gain.shape))
    return start, end, float(gain[start, end])


def _across(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts, more: int) -> Component | None:
    start, end, gained = _best_run(_gains(x, weight, -more * wrong.error[:, wrong.columns]))
    if gained >= 0:
        return None
    chosen = np.zeros(x.shape[1], bool)
    chosen[start:end] = True
    return wrong.judged(
        f"{wrong.where}{_those(chosen, parts)} {MORE[more]}", more * (x[:, chosen] @ weight[:, chosen].T), 2
    )


def _of_one(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, gains: Mapping[Part, np.ndarray], more: int
) -> Component | None:
    found = min(((*_best_run(gain), part) for part, gain in gains.items()), key=lambda each: each[2], default=None)
    if found is None or found[2] >= 0:
        return None
    start, end, _, (name, at, _) = found
    says = f"{wrong.where}inputs {start} to {end - 1}{f' of {name}' if name else ''} {MORE[more]}"
    inside = slice(at + start, at + end)
    return wrong.judged(says, more * (x[:, inside] @ weight[:, inside].T), 2)


def _of_all_alike(
    wrong: WrongRows, x: np.ndarray, weight: np.ndarray, gains: Mapping[Part, np.ndarray], more: int
) -> Iterator[Component | None]:
    """The same run in every part of one width: heads, or experts."""
    by_width: dict[int, list[Part]] = {}
    for part, gain in gains.items():
        by_width.setdefault(len(gain), []).append(part)
    for alike in by_width.values():
        start, end, gained = _best_run(np.add.reduce([gains[part] for part in alike]))
        if len(alike) > 1 and gained < 0:
            inside = np.concatenate([np.arange(at + start, at + end) for _, at, _ in alike])
            where = f"of each of {len(alike)} parts ({alike[0][0]}, …)"
            says = f"{wrong.where}inputs {start} to {end - 1} {where} {MORE[more]}"
            yield wrong.judged(says, more * (x[:, inside] @ weight[:, inside].T), 2)


def counting(wrong: WrongRows, x: np.ndarray, weight: np.ndarray) -> Component | None:
    """Columns of the input that each count by a factor of their own, as where a norm has another weight."""
    if x.shape[1] > WIDE:
        return None
    gram, met = (x.T @ x) * (weight.T @ weight), ((x.T @ wrong.error[:, wrong.columns]) * weight.T).sum(axis=1)
    more = np.linalg.lstsq(gram, met, rcond=1e-12)[0]
    nothing = np.abs(1 + more) < NOTHING
    low, high = np.percentile(1 + more[~nothing], (5, 95)) if not nothing.all() else (0.0, 0.0)
    those = (ranges_of(nothing, nothing.shape) or f"{nothing.sum()} columns") if nothing.any() else ""
    zero = f"none of input {those}, " if those else ""
    says = f"each input column counts otherwise, {zero}{'others' if zero else 'from'} {low:.3g} to {high:.3g} times"
    return wrong.judged(f"{wrong.where}{says}: a norm's weight, or a scale by column", (x * more) @ weight.T, len(more))


def contraction(wrong: WrongRows, x: np.ndarray, weight: np.ndarray, parts: Parts) -> Component | None:
    """The columns of the input whose contributions differ: those that lie in what the error spans over the rows."""
    left, rank = _spanned(wrong.error[:, wrong.columns] / wrong.noise)
    if rank == 0:
        return None
    columns = x / np.maximum(np.linalg.norm(x, axis=0), 1e-300)
    inside = np.linalg.norm(left[:, :rank].T @ columns, axis=0)
    return best_of(_contributing(wrong, x, weight, parts, chosen) for chosen in _candidates(inside, rank))


def entered(wrong: WrongRows, weight: np.ndarray, parts: Parts) -> Component | None:
    """The columns of the input that hold other values: those whose weights span the error over the outputs."""
    right, rank = _spanned((wrong.error[:, wrong.columns] / wrong.noise).T)
    if rank == 0:
        return None
    columns = weight / np.maximum(np.linalg.norm(weight, axis=0), 1e-300)
    inside = np.linalg.norm(right[:, :rank].T @ columns, axis=0)
    return best_of(_holding(wrong, weight, parts, chosen) for chosen in _candidates(inside, rank))


def _spanned(error: np.ndarray) -> tuple[np.ndarray, int]:
    """Directions of the rows of an error in units of noise, the largest first, and how many are more than noise.

    No direction counts where they are so many that nearly any column would lie in what they span.
    """
    left, size, _ = np.linalg.svd(error, full_matrices=False)
    edge = 1.5 * (np.sqrt(error.shape[0]) + np.sqrt(error.shape[1]))  # the largest of noise alone, and a half
    rank = int((size > edge).sum())
    return left, rank if rank <= min(error.shape) // 2 else 0


def _candidates(inside: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Sets of so many columns [D] that may span the error: the best runs of neighbours, and the best ones anywhere.

    Columns of a hidden state are much alike, so that the best one by one need not be those that belong together.
    """
    places = np.arange(len(inside))
    means = np.convolve(inside, np.ones(count), "valid")
    for start in np.argsort(-means)[:RUNS]:
        yield (places >= start) & (places < start + count)
    yield np.isin(places, np.argsort(-inside)[:count])


def _contributing(
    wrong: WrongRows,
    x: np.ndarray,
    weight: np.ndarray,
    parts: Parts,
    chosen: np.ndarray,
) -> Component | None:
    """The error as what these columns of the input contribute with another weight."""
    part = x[:, chosen]
    fitted = np.linalg.lstsq(part, wrong.error[:, wrong.columns], rcond=None)[0]
    own = weight[:, chosen].T
    missing = np.linalg.norm(fitted + own) < 0.1 * np.linalg.norm(own)
    told = _those(chosen, parts)
    says = f"{wrong.where}{told} are missing" if missing else f"{wrong.where}the weight of {told}"
    return wrong.judged(says, part @ fitted, fitted.size)


def _holding(wrong: WrongRows, weight: np.ndarray, parts: Parts, chosen: np.ndarray) -> Component | None:
    """The error as other values of these columns, row by row."""
    basis = np.linalg.svd(weight[:, chosen], full_matrices=False)[0]
    error = wrong.error[:, wrong.columns]
    says = f"{wrong.where}{_those(chosen, parts)}: other values, before they are multiplied"
    return wrong.judged(says, error @ basis @ basis.T, error.shape[0] * basis.shape[1], INSIDE)


def _those(chosen: np.ndarray, parts: Parts) -> str:
    """Columns of the input in words, by the part that they are of where it is one."""
    of = [(name, first, last) for name, first, last in parts if chosen[first:last].any()]
    if len(of) == 1 and of[0][2] - of[0][1] > 1:
        name, first, last = of[0]
        return f"input {ranges_of(chosen[first:last], (last - first,)) or 'columns here and there'} ({name})"
    told = f"input {ranges_of(chosen, chosen.shape) or 'columns here and there'}"
    names = [name for name, _, _ in of]
    return told + (f" ({', '.join(names) if len(names) < 3 else f'{names[0]} to {names[-1]}'})" if names else "")
