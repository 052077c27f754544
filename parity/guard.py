"""Every call into a device's code goes through here: what it raises becomes one sentence, and the process stays
ours."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Sequence, Sized
from functools import cache
from typing import Any, TypeVar

import numpy as np

from parity.batching import PREFILLS, VERBS, BatchCall, BatchVerbs, LanesContinue
from parity.endings import Terminated, arrived, from_outside, raise_swallowed
from parity.errors import DeviceEnded, DeviceFailed, NotOffered, UsageError
from parity.limits import LANES, TOKENS
from parity.partly_shown import PartlyShown
from parity.raised import as_parity_error, by_device, error_text, is_own, raised_at
from parity.seam import (
    Batched,
    Continuing,
    ContinuingInLanes,
    Description,
    Device,
    Inspectable,
    Layered,
    Looping,
    OnRound,
    PlainDecoding,
    Poisonable,
    Sampling,
    Saving,
    SavingInLanes,
    Synchronizes,
    Tap,
)
from parity.shown import check_declarations

T = TypeVar("T")

ROUND = VERBS[1:]
"""The verbs of a round; a prefill may be refused, as a prompt that does not fit."""


def call_guarded(device: str, call: str, function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a device's code.

    Its errors of parity are passed on as what they are (`UsageError`, `Inconclusive`, `NotOffered`), Ctrl-C too, which
    is raised once more behind a call that swallowed it (a `KeyboardInterrupt` of the device's own, where it can be told
    from that, ends a process as `SystemExit` does); but in the verbs of a round a device that calls its use wrong has
    failed: parity calls them rightly.
    `sys.stdout`, `sys.stderr`, `sys.exit` and the working directory are afterwards what they were; nothing is gone from
    `sys.path`.

    Raises:
        DeviceFailed: it raised.
        DeviceEnded: it raised what ends a process, or closed standard output.
    """
    kept, path = (sys.stdout, sys.stderr, sys.exit), tuple(sys.path)
    here, process = _folder(), os.getpid()
    try:
        result = function(*arguments, **options)
        raise_swallowed()
        return result
    except KeyboardInterrupt as error:
        if not isinstance(error, Terminated):
            raise_swallowed()
        arrived()
        if from_outside(error):
            raise
        raise as_parity_error(device, call, error) from error
    except BaseException as error:
        raise_swallowed()
        if isinstance(error, UsageError) and call.removesuffix("_batch") in ROUND and by_device(error):
            raise DeviceFailed(device, call, f"UsageError: {error_text(error)}", raised_at(error), True) from error
        if is_own(error):
            raise
        raise as_parity_error(device, call, error) from error
    finally:
        if os.getpid() != process:
            os._exit(1)  # a child that the device forked: the verdict is its parent's
        sys.stdout, sys.stderr, sys.exit = kept
        if here and _folder() != here:
            os.chdir(here)  # golden and run may be named from there
        if lost := [place for place in path if place not in sys.path]:
            sys.path = [*sys.path, *lost]
        if getattr(sys.stdout, "closed", False):
            raise DeviceEnded(device, call, "closed standard output")


def _folder() -> str:
    """The working directory; '' where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


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
        return value

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


def guard(device: Device | Layered, name: str) -> Guarded:
    """The device, guarded; `name` is what its errors call it."""
    kinds = (
        (Layered, LayeredGuarded),
        (Looping, LoopingGuarded),
        (Batched, BatchedGuarded),
        (Continuing, ContinuingGuarded),
        (Saving, SavingGuarded),
        (ContinuingInLanes, LanesContinueGuarded),
        (SavingInLanes, LanesSaveGuarded),
        (Poisonable, PoisonableGuarded),
        (PlainDecoding, PlainGuarded),
        (Synchronizes, SynchronizesGuarded),
        (Inspectable, InspectableGuarded),
    )
    offered = tuple(kind for offers, kind in kinds if isinstance(device, offers))
    guarded: Guarded = combined(offered or (Guarded,))(device, name)
    return guarded


@cache
def combined(kinds: tuple[type[T], ...]) -> type[T]:
    """The class of a device that offers several things."""
    made: type[T] = kinds[0] if len(kinds) == 1 else type(kinds[-1].__name__, kinds, {})
    return made


def watch_threads() -> None:
    """From now on an exception that ends a thread is told in one line, unless somebody else looks after them."""
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _thread_raised


def _thread_raised(ended: threading.ExceptHookArgs) -> None:
    from parity.plain import echo

    error = ended.exc_value or ended.exc_type()
    at = raised_at(error)
    echo(f"parity: a thread of the device raised {error_text(error)}" + (f" ({at})" if at else ""), err=True)


def unguarded(device: Device) -> Device:
    """The device inside, for what looks at its class."""
    while isinstance(device, Guarded | PartlyShown):
        device = device.inside
    return device


def check_description(
    says: Description,
    name: str,
    precision: str,
    k: int,
    partial_kv: str = "",
    kv_cache: str = "",
    lanes: int | None = None,
) -> None:
    """What a device was asked for is what it describes; `lanes` where they were.

    Raises:
        UsageError: it is not.
    """
    for what, asked, described in (
        ("precision", precision, says.precision),
        ("K", k, says.k),
        ("partial_kv", partial_kv or "none", says.partial_kv or "none"),
        ("kv_cache", kv_cache or "none", says.kv_cache or "none"),
        ("lanes", says.lanes if lanes is None else lanes, says.lanes),
    ):
        if asked != described:
            raise UsageError(
                f"--device {name} was asked for {what} {asked} and describes itself as {what} {described}: its factory "
                f"has to take {what} as it is asked for, or the command has to ask for {described}"
            )
    if type(says.lanes) is not int or not 1 <= says.lanes <= LANES:
        raise UsageError(
            f"--device {name} describes itself as {says.lanes!r} lanes: a whole number of 1 to {LANES} is due"
        )
    check_declarations(says, name)
