"""Ways through a plainly decoded prompt in passes of several rows; nothing is ever rejected and gone on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from parity.decode import Decoded, RowTap
from parity.drive import untapped
from parity.errors import Inconclusive
from parity.seam import Device


@dataclass(frozen=True)
class Case:
    """A prompt [S], its number in the golden, and how many tokens to decode behind it."""

    name: str
    prompt: int
    ids: tuple[int, ...]
    budget: int


@dataclass(frozen=True)
class Pass:
    """What one verify pass showed of rows that a plain decoding has as well.

    Attributes:
        first: row number of the plain decoding that row 0 repeats.
        rows: how many rows repeat one.
        drafts: drafts in the pass.
        seen: stage to the device's rows; only the first `rows` are on the plain decoding's path.
        tokens: what `verify` returned.
    """

    case: Case
    first: int
    rows: int
    drafts: int
    seen: dict[str, np.ndarray]
    tokens: np.ndarray


def accepting(device: Device, case: Case, plain: Decoded, drafts: int, phase: int = 0) -> Iterator[Pass]:
    """Passes of this many true drafts, all accepted, until the plain decoding ends.

    Args:
        phase: drafts of the first pass where not 0, so that later ones meet other positions.
    """
    step = _start(device, case, plain)
    while step < plain.steps:
        count = phase if phase and not step else drafts
        count = min(count, plain.steps - 1 - step)
        yield _accept(device, case, plain, step, count)
        step += count + 1


def rejecting(device: Device, case: Case, plain: Decoded, drafts: int, true: int, behind: int) -> Iterator[Pass]:
    """One pass whose drafts are wrong from number `true` on, behind `behind` accepted passes; it ends the walk."""
    step = _start(device, case, plain)
    for _ in range(behind):
        count = min(drafts, plain.steps - 1 - step)
        if count < 0:
            return
        _accept(device, case, plain, step, count)
        step += count + 1
    if plain.steps - step <= true:
        return
    right = list(plain.tokens[step + 1 : step + 1 + drafts])
    right += right[-1:] * (drafts - len(right))
    ids = np.array(right, np.int64)
    # The ids behind the true ones are other tokens of the same text: legal, and wrong at the first of them.
    other = next((token for token in case.ids if token != ids[true]), None)
    if other is None:
        return
    ids[true:] = other
    yield _look(device, case, plain, step, true + 1, ids)


def _start(device: Device, case: Case, plain: Decoded) -> int:
    first = int(device.prefill(case.ids, case.budget, untapped))
    if first != plain.tokens[0]:
        raise Inconclusive(f"{case.name}: prefill gave {plain.tokens[0]} once and {first} the next time")
    return 0


def _accept(device: Device, case: Case, plain: Decoded, step: int, count: int) -> Pass:
    ids = np.array(plain.tokens[step + 1 : step + 1 + count], np.int64)
    found = _look(device, case, plain, step, count + 1, ids)
    true = np.array(plain.tokens[step + 1 : step + 2 + count], np.int64)
    fresh = device.commit(ids, true, untapped)
    if list(fresh) != list(true):
        raise Inconclusive(
            f"{case.name}: {count} accepted drafts emitted {list(fresh)}, not {list(true)} (see lossless)"
        )
    return found


def _look(device: Device, case: Case, plain: Decoded, step: int, rows: int, ids: Sequence[int]) -> Pass:
    """One verify pass with the plain decoding's experts and tokens forced in the rows that repeat it."""
    tokens = np.array(plain.tokens[step + 1 : step + 1 + rows], np.int64)
    tap = RowTap(plain.routed(step, rows) | {"verify.tokens": tokens})
    returned = device.verify(np.asarray(ids, np.int64), tap)
    missing = {"verify.logits", "verify.tokens"} - tap.seen.keys()
    if missing:
        raise Inconclusive(f"the device hands over no {sorted(missing)[0]} in verify")
    return Pass(case, step, rows, len(ids), tap.seen, np.asarray(returned))
