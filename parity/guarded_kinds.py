"""A device whose calls are guarded: its verbs, and those of what else it may offer."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from typing import Any

import numpy as np

from parity.batching import PREFILLS, VERBS, BatchCall, BatchVerbs, LanesContinue
from parity.errors import DeviceFailed, NotOffered
from parity.guarded_call import call_guarded
from parity.limits import TOKENS
from parity.seam import Description, Device, Layered, OnRound, Sampling, Tap


class Guarded:
    """A device whose verbs are called through `call_guarded`; anything else is the attribute of the device inside."""

    def __init__(self, inside: Device | Layered, name: str):
        self.__dict__.update(inside=inside, guarded_as=name, first_description=None)

    def describe(self) -> Description:
        """What the device says of itself.

        Raises:
            DeviceFailed: it said another precision or shape before.
        """
        description: Description = self._ask("describe")
        first = self.__dict__["first_description"]
        if first is None:
            self.__dict__["first_description"] = description
        elif changed := _changed(first, description):
            raise DeviceFailed(self.guarded_as, "describe", changed)
        return description

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Device.prefill`."""
        token: int = self._ask("prefill", prompt_ids, max_new_tokens, tap)
        return token

    def draft(self, tap: Tap, *k: int) -> np.ndarray:
        """See `Device.draft` and `VaryingK.draft`."""
        drafts: np.ndarray = self._tokens("draft", tap, *k)
        return drafts

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.verify`."""
        tokens: np.ndarray = self._tokens("verify", _own(draft_tokens), tap)
        return tokens

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.commit`."""
        emitted: np.ndarray = self._tokens("commit", _own(draft_tokens), _own(verify_tokens), tap)
        return emitted

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """See `Samples.sample`."""
        self._ask("sample", settings, uniforms)

    def decide(self, settings: Sampling, *arrays: np.ndarray) -> np.ndarray:
        """See `Decides.decide`; `NotOffered` where the device has no such function."""
        if not callable(getattr(self.inside, "decide", None)):
            raise NotOffered(f"device {self.guarded_as} does not offer its accept rule alone (`parity.seam.Decides`)")
        ids: np.ndarray = self._ask("decide", settings, *arrays)
        return ids

    def _tokens(self, verb: str, *arguments: Any) -> Any:
        """What a verb returns, if it can be the tokens of one round: what reads it need not fear an endless one."""
        return self._few(verb, self._ask(verb, *arguments))

    def _few(self, verb: str, value: Any) -> Any:
        size = call_guarded(self.guarded_as, verb, lambda: _count(value))
        if size > TOKENS:
            raise DeviceFailed(self.guarded_as, verb, f"it returned {size} values as the tokens of one round")
        return call_guarded(self.guarded_as, verb, lambda: _in_array(value))

    def _ask(self, verb: str, *arguments: Any) -> Any:
        return call_guarded(self.guarded_as, verb, lambda: getattr(self.inside, verb)(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inside"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inside, name, value)


JUDGED_BY = ("precision", "num_layers", "num_drafter_layers", "k")
"""What a description says for good: the bounds and the shapes are of it."""


def _own(tokens: np.ndarray) -> np.ndarray:
    """The tokens in an array that nobody else holds: what a device does to it is its own affair."""
    return tokens.copy() if isinstance(tokens, np.ndarray) else tokens


def _changed(first: Description, description: Description) -> str:
    """What two descriptions of one device say otherwise of what it is judged by."""
    for name in JUDGED_BY:
        said, now = getattr(first, name), getattr(description, name)
        if said != now:
            return f"it described its {name} as {said!r}, and now as {now!r}: a description is for good"
    return ""


def _in_array(tokens: Any) -> Any:
    """A list of whole numbers as the array that the seam asks for; anything else as it is, for its readers to judge."""
    whole = isinstance(tokens, list | tuple) and all(isinstance(one, int | np.integer) for one in tokens)
    return np.array(tokens, np.int64) if whole else tokens


def _count(tokens: Any) -> int:
    if not hasattr(tokens, "shape") and not isinstance(tokens, Sized):
        raise TypeError(
            f"it returned a value of type {type(tokens).__name__}, which is neither an array nor a list of tokens"
        )
    return math.prod(tokens.shape) if hasattr(tokens, "shape") else len(tokens)


class BatchedGuarded(BatchVerbs, Guarded):
    """One of several lanes."""

    def batch(self, call: BatchCall) -> Sequence[Any]:
        """See `BatchVerbs.batch`."""
        count = len(call.lanes)
        values: Sequence[Any] = call_guarded(self.guarded_as, call.name, lambda: call.on(self.inside))
        if not isinstance(values, list | tuple | np.ndarray) or len(values) != count:
            one = f"{len(values)} results" if isinstance(values, Sized) else f"a value of type {type(values).__name__}"
            said = f"it returned {one} for {count} lanes: a list is due, with one entry for each of them in their order"
            raise DeviceFailed(self.guarded_as, call.name, said)
        return values if call.verb in PREFILLS else [self._few(call.name, tokens) for tokens in values]

    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """See `parity.seam.SamplesInLanes`."""
        self._ask("sample_batch", lanes, settings, uniforms)


class ContinuingGuarded(Guarded):
    """One whose prefill can continue from its caches."""

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Continuing.prefill_from`."""
        token: int = self._ask("prefill_from", cached, prompt_ids, max_new_tokens, tap)
        return token


class SavingGuarded(Guarded):
    """One whose sequence can be taken off and put back."""

    def save(self, name: str) -> None:
        """See `Saving.save`."""
        self._ask("save", name)

    def restore(self, name: str) -> None:
        """See `Saving.restore`."""
        self._ask("restore", name)


class LanesContinueGuarded(LanesContinue, Guarded):
    """One of several lanes whose prefills continue from their caches."""


class LanesSaveGuarded(Guarded):
    """One of several lanes whose sequences can be taken off and put back."""

    def save_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """See `SavingInLanes.save_batch`."""
        self._ask("save_batch", lanes, names)

    def restore_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """See `SavingInLanes.restore_batch`."""
        self._ask("restore_batch", lanes, names)


class PlainGuarded(Guarded):
    """One that decodes plainly in one call."""

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Sequence[int]:
        """See `PlainDecoding.decode_plain`."""
        emitted: Sequence[int] = self._tokens("decode_plain", prompt_ids, max_new_tokens)
        return emitted


class SynchronizesGuarded(Guarded):
    """One that can be waited for."""

    def synchronize(self) -> None:
        """See `Synchronizes.synchronize`."""
        self._ask("synchronize")


class PoisonableGuarded(Guarded):
    """One whose dead cache rows can be overwritten."""

    def poison(self, value: float) -> None:
        """See `Poisonable.poison`."""
        self._ask("poison", value)


class InspectableGuarded(Guarded):
    """One whose caches can be looked at."""

    def show_caches(self, tap: Tap) -> None:
        """See `Inspectable.show_caches`."""
        self._ask("show_caches", tap)


class LoopingGuarded(Guarded):
    """One whose host loop is one piece: it has no verbs to call."""

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap, on_round: OnRound) -> Sequence[int]:
        """See `Looping.speculate`."""
        emitted: Sequence[int] = self._tokens("speculate", prompt_ids, max_new_tokens, tap, on_round)
        return emitted

    def _ask(self, verb: str, *arguments: Any) -> Any:
        if verb in VERBS:
            raise NotOffered(f"device {self.guarded_as} runs a loop of its own, of which no {verb} can be asked alone")
        return super()._ask(verb, *arguments)


class LayeredGuarded(Guarded):
    """One that runs its target's layers one at a time."""

    def open(self, layer: int) -> None:
        """See `Layered.open`."""
        self._ask("open", layer)

    def clear(self) -> None:
        """See `Layered.clear`."""
        self._ask("clear")

    def forward(self, x: np.ndarray, tap: Tap) -> None:
        """See `Layered.forward`."""
        self._ask("forward", x, tap)

    def keep(self, length: int, tap: Tap) -> None:
        """See `Layered.keep`."""
        self._ask("keep", length, tap)
