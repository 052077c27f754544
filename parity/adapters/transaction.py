"""Verbs that are done whole or not at all, around a device whose own are not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from parity.arrays import Array
from parity.errors import UsageError
from parity.seam import Description, Device, Poisonable, Tap

Snapshot = Callable[[], Any]
Restore = Callable[[Any], None]


class Transactional:
    """A device that keeps what it was before every verb: one that raises is undone, a round starts again at `draft`.

    Args:
        device: any; its other attributes are this one's.
        snapshot: what its state is now, in a form that later verbs do not change.
        restore: puts such a state back; it may be asked to more than once.
    """

    def __init__(self, device: Device, snapshot: Snapshot, restore: Restore):
        self.inside = device
        self._snapshot, self._restore = snapshot, restore
        self._round: Any = None  # the state in which the round began, once it was drafted

    def describe(self) -> Description:
        """The device's own description."""
        return replace(self.inside.describe(), transactional=True)

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Device.prefill`."""
        with self._whole():
            first = self.inside.prefill(prompt_ids, max_new_tokens, tap)
            self._round = None
        return first

    def draft(self, tap: Tap, *k: int) -> Array:
        """See `Device.draft` and `VaryingK.draft`; a second one in a round starts from what the first one found."""
        with self._whole():
            if self._round is not None:
                self._restore(self._round)
            began = self._snapshot()
            drafts = self.inside.draft(tap, *k)
            self._round = began
        return drafts

    def verify(self, draft_tokens: Array, tap: Tap) -> Array:
        """See `Device.verify`."""
        with self._whole():
            return self.inside.verify(draft_tokens, tap)

    def commit(self, draft_tokens: Array, verify_tokens: Array, tap: Tap) -> Array:
        """See `Device.commit`."""
        with self._whole():
            emitted = self.inside.commit(draft_tokens, verify_tokens, tap)
            self._round = None
        return emitted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inside"], name)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        found, began = self._snapshot(), self._round
        try:
            yield
        except BaseException:
            self._restore(found)
            self._round = began
            raise


class TransactionalPoisonable(Transactional):
    """One whose dead cache rows can be overwritten."""

    def poison(self, value: float) -> None:
        """See `Poisonable.poison`."""
        assert isinstance(self.inside, Poisonable)
        self.inside.poison(value)


def transactional(
    device: Device,
    state: Sequence[str] = (),
    snapshot: Snapshot | None = None,
    restore: Restore | None = None,
) -> Transactional:
    """The device with verbs that are done whole or not at all.

    Args:
        state: attributes (dotted where they lie deeper) that its verbs change: deep copies are kept of them, one of
            whatever they share. Name them: weights need no copy.
        snapshot, restore: the same by functions of the device's own, for state that cannot be copied so (buffers on an
            accelerator).

    Raises:
        UsageError: neither is given, or both, or an attribute is not there.
    """
    if bool(state) == (snapshot is not None) or (snapshot is None) != (restore is None):
        raise UsageError("transactional needs the attributes that verbs change, or a snapshot and a restore function")
    if snapshot is None or restore is None:
        snapshot, restore = _copies(device, state)
    kind = TransactionalPoisonable if isinstance(device, Poisonable) else Transactional
    return kind(device, snapshot, restore)


def _copies(device: Device, state: Sequence[str]) -> tuple[Snapshot, Restore]:
    for path in state:
        _owner(device, path)

    def snapshot() -> dict[str, Any]:
        return copy.deepcopy({path: getattr(*_owner(device, path)) for path in state})

    def restore(kept: dict[str, Any]) -> None:
        for path, value in copy.deepcopy(kept).items():
            setattr(*_owner(device, path), value)

    return snapshot, restore


def _owner(device: Any, path: str) -> tuple[Any, str]:
    """What holds an attribute, and its name there."""
    *parents, name = path.split(".")
    owner = device
    try:
        for parent in parents:
            owner = getattr(owner, parent)
        getattr(owner, name)
    except AttributeError as error:
        raise UsageError(f"state {path!r} of the device cannot be kept: {error}") from None
    return owner, name
