"""Every verb of a device done whole or not at all, and which of them end the round that a second `draft` starts again.

What begins another sequence, and `commit`, ends the round: there is nothing behind it that a draft could start again.
What is asked for beside the sequence, settings of the next one and what is saved, an undone draft does not take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from parity.arrays import Array
from parity.seam import (
    Continuing,
    Description,
    Device,
    Inspectable,
    Looping,
    OnRound,
    PlainDecoding,
    Poisonable,
    Sampling,
    Saving,
    Tap,
)

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
        self.inside: Any = device
        self._snapshot, self._restore = snapshot, restore
        self._round: Any = None  # the state in which the round began, once it was drafted
        self._beside: list[tuple[str, tuple[Any, ...]]] = []  # calls since then that a second draft does not undo

    def describe(self) -> Description:
        """The device's own description."""
        says: Description = self.inside.describe()
        return replace(says, transactional=True)

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Device.prefill`."""
        first: int = self._ending("prefill", prompt_ids, max_new_tokens, tap)
        return first

    def draft(self, tap: Tap, *k: int) -> Array:
        """See `Device.draft` and `VaryingK.draft`; a second one in a round starts from what the first one found."""
        with self._whole():
            if self._round is not None:
                self._restore(self._round)
                for verb, arguments in self._beside:
                    getattr(self.inside, verb)(*arguments)
            began = self._snapshot()
            drafts: Array = self.inside.draft(tap, *k)
            self._round, self._beside = began, []
        return drafts

    def verify(self, draft_tokens: Array, tap: Tap) -> Array:
        """See `Device.verify`."""
        with self._whole():
            tokens: Array = self.inside.verify(draft_tokens, tap)
        return tokens

    def commit(self, draft_tokens: Array, verify_tokens: Array, tap: Tap) -> Array:
        """See `Device.commit`."""
        emitted: Array = self._ending("commit", draft_tokens, verify_tokens, tap)
        return emitted

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """See `Samples.sample`."""
        self._aside("sample", settings, uniforms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inside"], name)

    def _ending(self, verb: str, *arguments: Any) -> Any:
        """A verb behind which no round is open."""
        with self._whole():
            value = getattr(self.inside, verb)(*arguments)
            self._round, self._beside = None, []
        return value

    def _aside(self, verb: str, *arguments: Any) -> None:
        with self._whole():
            getattr(self.inside, verb)(*arguments)
            if self._round is not None:
                self._beside = [*self._beside, (verb, arguments)]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        found, began, beside = self._snapshot(), self._round, self._beside
        try:
            yield
        except BaseException:
            self._restore(found)
            self._round, self._beside = began, beside
            raise


class TransactionalContinuing(Transactional):
    """One whose prefill can continue from its caches."""

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Continuing.prefill_from`."""
        first: int = self._ending("prefill_from", cached, prompt_ids, max_new_tokens, tap)
        return first


class TransactionalSaving(Transactional):
    """One whose sequence can be taken off and put back."""

    def save(self, name: str) -> None:
        """See `Saving.save`."""
        self._aside("save", name)

    def restore(self, name: str) -> None:
        """See `Saving.restore`."""
        self._ending("restore", name)


class TransactionalPoisonable(Transactional):
    """One whose dead cache rows can be overwritten."""

    def poison(self, value: float) -> None:
        """See `Poisonable.poison`."""
        with self._whole():
            self.inside.poison(value)


class TransactionalPlain(Transactional):
    """One that decodes plainly in one call."""

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Sequence[int]:
        """See `PlainDecoding.decode_plain`."""
        emitted: Sequence[int] = self._ending("decode_plain", prompt_ids, max_new_tokens)
        return emitted


class TransactionalLooping(Transactional):
    """One whose host loop is one piece."""

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap, on_round: OnRound) -> Sequence[int]:
        """See `Looping.speculate`."""
        emitted: Sequence[int] = self._ending("speculate", prompt_ids, max_new_tokens, tap, on_round)
        return emitted


class TransactionalInspectable(Transactional):
    """One whose caches can be looked at."""

    def show_caches(self, tap: Tap) -> None:
        """See `Inspectable.show_caches`."""
        with self._whole():
            self.inside.show_caches(tap)


KINDS = (
    (Continuing, TransactionalContinuing),
    (Saving, TransactionalSaving),
    (Poisonable, TransactionalPoisonable),
    (PlainDecoding, TransactionalPlain),
    (Looping, TransactionalLooping),
    (Inspectable, TransactionalInspectable),
)
"""What a device may offer, and the class that makes it whole."""
