"""The device that parity calls in place of one in another process.

The process is not trusted to run code here: what comes back is numbers, names and arrays, see `parity.isolation.wire`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np

from parity.batching import BatchCall, BatchVerbs, LanesContinue
from parity.errors import DeviceEnded
from parity.guard import combined
from parity.isolation.process import DeviceProcess, ProcessLimits
from parity.seam import Description, OnRound, Rotary, Rows, Sampling, Shown, Side, Tap, When

OFFERS = ("unwatched", "ranks", "rows", "on_round")
"""What a tap may have beside being called; `unwatched` says that nobody looks."""


class LoopTap:
    """A loop's tap, and where it announces its rounds."""

    def __init__(self, tap: Tap, on_round: OnRound):
        self.tap, self.on_round = tap, on_round

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        return self.tap(stage, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["tap"], name)


class IsolatedDevice:
    """A device whose verbs run in a process of its own.

    Args:
        process: where it lives.
        number: its own there.
    """

    def __init__(self, process: DeviceProcess, number: int):
        self._process, self._number = process, number
        self._generation = process.generation

    @property
    def process_ended(self) -> bool:
        """Whether its process is gone, and the device with it."""
        return not self._process.running or self._process.generation != self._generation

    def describe(self) -> Description:
        """What the device says of itself."""
        said = self._ask("describe", {"do": "describe"})
        try:
            return Description(**{name: kind(said[name]) for name, kind in _KINDS.items() if name in said})
        except (TypeError, ValueError, AttributeError) as error:
            raise DeviceEnded(
                self._process.name, "describe", f"describes itself in no way that can be read ({error})"
            ) from None

    def prefill(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Device.prefill`."""
        first: int = self._verb("prefill", [tuple(int(token) for token in prompt_ids), int(max_new_tokens)], tap)
        return first

    def draft(self, tap: Tap, *k: int) -> np.ndarray:
        """See `Device.draft` and `VaryingK.draft`."""
        drafts: np.ndarray = self._verb("draft", [], tap, [int(one) for one in k])
        return drafts

    def verify(self, draft_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.verify`."""
        tokens: np.ndarray = self._verb("verify", [draft_tokens], tap)
        return tokens

    def commit(self, draft_tokens: np.ndarray, verify_tokens: np.ndarray, tap: Tap) -> np.ndarray:
        """See `Device.commit`."""
        emitted: np.ndarray = self._verb("commit", [draft_tokens, verify_tokens], tap)
        return emitted

    def sample(self, settings: Sampling | None, uniforms: np.ndarray) -> None:
        """See `Samples.sample`."""
        self._ask("sample", {"do": "sample", "settings": _said(settings), "uniforms": uniforms})

    def decide(self, settings: Sampling, *arrays: np.ndarray) -> np.ndarray:
        """See `Decides.decide`."""
        ids: np.ndarray = self._ask("decide", {"do": "decide", "settings": _said(settings), "arrays": [*arrays]})
        return ids

    def reached_modules(self, declared: Sequence[str], name: str, golden: Sequence[str]) -> set[str]:
        """See `parity.golden.trust.device_modules`: only its own process has them loaded."""
        asked = {"do": "modules", "declared": list(declared), "name": name, "golden": list(golden)}
        return {str(module) for module in self._ask("describe", asked)}

    def _verb(self, verb: str, arguments: list[Any], tap: Tap | None, behind: Sequence[Any] = ()) -> Any:
        """Call a verb: `arguments`, the tap, and what comes behind it."""
        offers = None if tap is None else [name for name in OFFERS if _offers(tap, name)]
        asked = {"do": "verb", "verb": verb, "arguments": arguments, "offers": offers, "behind": [*behind]}
        return self._ask(verb, asked, tap)

    def _ask(self, call: str, asked: dict[str, Any], tap: Tap | None = None) -> Any:
        if self.process_ended:
            raise DeviceEnded(self._process.name, call, "has ended already and cannot be asked")
        return self._process.ask(call, asked | {"number": self._number}, tap)

    def __del__(self) -> None:
        if not self.process_ended:
            self._process.dropped.append(self._number)


class LaneTaps:
    """The taps of several lanes as one: a stage comes with its lane's place in front, `0:target.embed`."""

    def __init__(self, taps: Sequence[Tap]):
        self.taps = taps

    def __call__(self, stage: str, value: np.ndarray) -> np.ndarray:
        tap, stage = self._of(stage)
        return np.asarray(tap(stage, value))

    def rows(self, stage: str, *rest: Any) -> Any:
        """See `RowTap.rows`."""
        tap, stage = self._of(stage)
        return tap.rows(stage, *rest)

    def ranks(self, stage: str, *rest: Any) -> Any:
        """See `RankTap.ranks`."""
        tap, stage = self._of(stage)
        return tap.ranks(stage, *rest)

    def _of(self, stage: str) -> tuple[Any, str]:
        place, _, stage = stage.partition(":")
        return self.taps[int(place)], stage


class IsolatedBatchedDevice(BatchVerbs, IsolatedDevice):
    """One of several lanes."""

    def batch(self, call: BatchCall) -> Sequence[Any]:
        """See `BatchVerbs.batch`."""
        arguments = [list(map(int, call.lanes)), *map(_column, call.before)]
        asked = {"verb": call.name, "arguments": arguments, "behind": list(map(_column, call.behind))}
        offers = [[name for name in OFFERS if _offers(tap, name)] for tap in call.taps]
        values: Sequence[Any] = self._ask(call.verb, {"do": "verb", "offers": offers, **asked}, LaneTaps(call.taps))
        return values

    def sample_batch(
        self, lanes: Sequence[int], settings: Sequence[Sampling | None], uniforms: Sequence[np.ndarray]
    ) -> None:
        """See `parity.seam.SamplesInLanes`."""
        asked = {"lanes": list(map(int, lanes)), "settings": list(map(_said, settings)), "uniforms": [*uniforms]}
        self._ask("sample_batch", {"do": "sample_batch", **asked})


class IsolatedContinuingDevice(IsolatedDevice):
    """One whose prefill can continue from its caches."""

    def prefill_from(self, cached: int, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap) -> int:
        """See `Continuing.prefill_from`."""
        asked = [int(cached), tuple(int(token) for token in prompt_ids), int(max_new_tokens)]
        first: int = self._verb("prefill_from", asked, tap)
        return first


class IsolatedSavingDevice(IsolatedDevice):
    """One whose sequence can be taken off and put back."""

    def save(self, name: str) -> None:
        """See `Saving.save`."""
        self._verb("save", [str(name)], None)

    def restore(self, name: str) -> None:
        """See `Saving.restore`."""
        self._verb("restore", [str(name)], None)


class IsolatedLanesContinue(LanesContinue, IsolatedDevice):
    """One of several lanes whose prefills continue from their caches."""


class IsolatedLanesSave(IsolatedDevice):
    """One of several lanes whose sequences can be taken off and put back."""

    def save_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """See `SavingInLanes.save_batch`."""
        self._verb("save_batch", [list(map(int, lanes)), list(map(str, names))], None)

    def restore_batch(self, lanes: Sequence[int], names: Sequence[str]) -> None:
        """See `SavingInLanes.restore_batch`."""
        self._verb("restore_batch", [list(map(int, lanes)), list(map(str, names))], None)


class IsolatedPlainDevice(IsolatedDevice):
    """One that decodes plainly in one call."""

    def decode_plain(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Sequence[int]:
        """See `PlainDecoding.decode_plain`."""
        asked = [tuple(int(token) for token in prompt_ids), int(max_new_tokens)]
        emitted: Sequence[int] = self._verb("decode_plain", asked, None)
        return emitted


class IsolatedPoisonableDevice(IsolatedDevice):
    """One whose dead cache rows can be overwritten."""

    def poison(self, value: float) -> None:
        """See `Poisonable.poison`."""
        self._verb("poison", [float(value)], None)


class IsolatedInspectableDevice(IsolatedDevice):
    """One whose caches can be looked at."""

    def show_caches(self, tap: Tap) -> None:
        """See `Inspectable.show_caches`."""
        self._verb("show_caches", [], tap)


class IsolatedLoopingDevice(IsolatedDevice):
    """One whose host loop is one piece."""

    def speculate(self, prompt_ids: Sequence[int], max_new_tokens: int, tap: Tap, on_round: OnRound) -> Sequence[int]:
        """See `Looping.speculate`."""
        asked = [tuple(int(token) for token in prompt_ids), int(max_new_tokens)]
        emitted: Sequence[int] = self._verb("speculate", asked, LoopTap(tap, on_round))
        return emitted


KINDS: dict[str, type[IsolatedDevice]] = {
    "loops": IsolatedLoopingDevice,
    "batches": IsolatedBatchedDevice,
    "continues": IsolatedContinuingDevice,
    "saves": IsolatedSavingDevice,
    "continues in lanes": IsolatedLanesContinue,
    "saves in lanes": IsolatedLanesSave,
    "poisons": IsolatedPoisonableDevice,
    "decodes": IsolatedPlainDevice,
    "inspects": IsolatedInspectableDevice,
}
"""By what a device says that it offers."""


class IsolatedFactory:
    """As `parity.factories.Factory`, its devices in a process of their own; a new one where that has ended.

    Raises:
        UsageError: the name is unknown, or cannot be imported.
        DeviceFailed: its module raises, or ends the process.
    """

    def __init__(
        self,
        name: str,
        target: Path,
        drafter: Path,
        k: int,
        limits: ProcessLimits,
        partial_kv: str = "",
        kv_cache: str = "",
    ):
        opened = {"name": name, "target": str(target), "drafter": str(drafter), "k": k}
        opened |= {"partial_kv": partial_kv, "kv_cache": kv_cache}
        self.process = DeviceProcess(name, limits, opened)
        self._numbers = count()
        self.process.start()

    def __call__(self, precision: str, **options: Any) -> IsolatedDevice:
        """Build a device."""
        number = next(self._numbers)
        asked = {"do": "build", "number": number, "precision": precision, "options": options}
        offers = self.process.ask("its factory", asked)
        kinds = tuple(kind for name, kind in KINDS.items() if name in offers)
        device: IsolatedDevice = combined(kinds or (IsolatedDevice,))(self.process, number)
        return device

    def rotary(self) -> Rotary | None:
        """The rotary embedding of the device's module; None where there is none."""
        return self._rotate if self.process.rotates else None

    def _rotate(self, folder: Path, side: Side, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        asked = {"do": "rotate", "folder": str(folder), "side": side, "x": x, "positions": positions}
        rotated: np.ndarray = self.process.ask("rotate", asked)
        return rotated


def _offers(tap: Tap, name: str) -> bool:
    """Whether a tap has this method, or the mark that nobody looks."""
    offered = getattr(tap, name, None)
    return callable(offered) or offered is True


def _column(values: Sequence[Any]) -> list[Any]:
    """What the lanes are given as one argument: prompts are tuples, numbers stay numbers."""
    return [tuple(map(int, one)) if isinstance(one, Sequence) else one for one in values]


def _said(settings: Sampling | None) -> dict[str, Any] | None:
    return None if settings is None else asdict(settings)


def _texts(said: dict[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in said.items()}


def _numbers(said: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(number) for number in said)


def _shown(said: dict[str, Any]) -> Shown:
    for when in get_args(When):
        for rows in get_args(Rows):
            if (said["when"], said["rows"]) == (when, rows):
                return Shown(str(said["stages"]), when, rows)
    raise ValueError(f"{said} declares no rows or rounds that are known")


_KINDS: dict[str, Callable[[Any], Any]] = {
    "name": str, "precision": str, "num_layers": int, "num_drafter_layers": int, "k": int, "max_positions": int,
    "eos": _numbers, "versions": _texts, "modules": lambda said: tuple(map(str, said)), "notes": _texts,
    "constants": lambda said: {str(side): dict(of) for side, of in said.items()},
    "shown": lambda said: tuple(map(_shown, said)),
    "forcible": lambda said: tuple(map(str, said)),
    "transactional": bool,
    "varies_k": bool,
    "lanes": int,
    "samples": bool,
    "own_numbers": bool,
    "family": str,
    "partial_kv": str,
    "kv_cache": str,
}  # fmt: skip
"""How each field of a `Description` is read."""
