"""The process of a device: builds devices and calls their verbs as it is asked to, taps going back over the socket."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from parity.errors import DeviceFailed, Inconclusive, NotOffered, ParityError, UsageError
from parity.factories import Factory
from parity.guarded_call import call_guarded
from parity.isolation.wire import packed, unpacked
from parity.raised import error_text, raised_at
from parity.seam import (
    UNWATCHED,
    Batched,
    Continuing,
    ContinuingInLanes,
    Device,
    Inspectable,
    Looping,
    PlainDecoding,
    Poisonable,
    Samples,
    SamplesInLanes,
    Sampling,
    Saving,
    SavingInLanes,
    Side,
)

ERRORS = (NotOffered, Inconclusive, UsageError)


class TapRaised(Exception):
    """The tap raised, over there: its error is raised there again when the verb ends with this one."""


class DeviceServer:
    """One end of the socket.

    Attributes:
        devices: built so far, by number.
        calls: what can be asked, by name.
    """

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.devices: dict[int, Device] = {}
        self._made: Factory | None = None
        self.calls: dict[str, Callable[..., Any]] = {
            "open": self._open,
            "build": self._build,
            "describe": self._describe,
            "verb": self._verb,
            "rotate": self._rotate,
            "sample": self._sample,
            "sample_batch": self._sample_batch,
            "decide": self._decide,
            "modules": self._modules,
        }

    @property
    def made(self) -> Factory:
        """The factory; the first message opens it."""
        assert self._made is not None, "nothing is asked before `open`"
        return self._made

    def serve(self) -> None:
        """Answer until the other end is closed."""
        while True:
            try:
                asked = self.receive()
            except EOFError:
                return
            for number in asked.pop("dropped"):
                self.devices.pop(number, None)
            self.send(self.answer(asked))

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The result of a request, or its error."""
        try:
            return {"is": "result", "result": self.calls[asked.pop("do")](**asked)}
        except TapRaised as error:
            return {"is": "error", "class": "TapRaised", "said": "", "at": raised_at(error)}
        except DeviceFailed as error:
            said = {"said": error.said, "at": error.at, "refuses": error.refuses, "call": error.call}
            return {"is": "error", "class": type(error).__name__, **said}
        except ParityError as error:
            kind = next(kind for kind in ERRORS if isinstance(error, kind))
            return {"is": "error", "class": kind.__name__, "said": str(error), "at": ""}

    def tapped(self, how: str, stage: str, given: Any, **more: Any) -> Any:
        """What the tap over there makes of a stage; the very thing that was given where it leaves it."""
        self.send({"is": "tap", "how": how, "stage": stage, "given": given, **more})
        answer = self.receive()
        if answer["is"] == "raised":
            raise TapRaised
        return given if answer["is"] == "same" else answer["taken"]

    def rounded(self, drafts: Any, emitted: Any, tokens: Any = None) -> None:
        """A round of a loop is over."""
        said = [None if ids is None else [int(token) for token in ids] for ids in (drafts, emitted, tokens)]
        self.tapped("on_round", "", said)

    def send(self, said: Any) -> None:
        """Send a message; something that cannot be said is an error of whoever says it."""
        for buffer in packed(said):
            self.connection.sendall(buffer)

    def receive(self) -> Any:
        """The next message."""
        return unpacked(self._fill)

    def _fill(self, buffer: memoryview) -> None:
        while buffer:
            count = self.connection.recv_into(buffer)
            if not count:
                raise EOFError
            buffer = buffer[count:]

    def _open(self, name: str, target: str, drafter: str, k: int, partial_kv: str = "", kv_cache: str = "") -> bool:
        self._made = Factory(name, Path(target), Path(drafter), k, partial_kv, kv_cache)
        return self.made.rotary() is not None

    def _build(self, number: int, precision: str, options: dict[str, Any]) -> list[str]:
        self.devices[number] = self.made(precision, **options)
        kinds: dict[str, type[Any]] = {
            "loops": Looping,
            "batches": Batched,
            "continues": Continuing,
            "saves": Saving,
            "continues in lanes": ContinuingInLanes,
            "saves in lanes": SavingInLanes,
            "poisons": Poisonable,
            "decodes": PlainDecoding,
            "inspects": Inspectable,
        }
        return [name for name, kind in kinds.items() if isinstance(self.devices[number], kind)]

    def _describe(self, number: int) -> dict[str, Any]:
        says = self.devices[number].describe()
        described: dict[str, Any] = call_guarded(self.made.name, "describe", lambda: asdict(says))
        self._sayable("describe", described)
        return described

    def _verb(
        self, number: int, verb: str, arguments: Sequence[Any], offers: Sequence[Any] | None, behind: Sequence[Any]
    ) -> Any:
        taps: tuple[Any, ...] = () if offers is None else (_tap(self, offers),)
        if isinstance(self.devices[number], Batched) and offers is not None:
            taps = ([_tap(self, of_lane, f"{place}:") for place, of_lane in enumerate(offers)],)
        if offers is not None and "on_round" in offers:
            taps = (*taps, self.rounded)
        return self._sayable(verb, getattr(self.devices[number], verb)(*arguments, *taps, *behind))

    def _sample(self, number: int, settings: dict[str, Any] | None, uniforms: np.ndarray) -> None:
        cast(Samples, self.devices[number]).sample(_settings(settings), uniforms)

    def _sample_batch(
        self,
        number: int,
        lanes: Sequence[int],
        settings: Sequence[dict[str, Any] | None],
        uniforms: Sequence[np.ndarray],
    ) -> None:
        cast(SamplesInLanes, self.devices[number]).sample_batch(lanes, list(map(_settings, settings)), uniforms)

    def _decide(self, number: int, settings: dict[str, Any], arrays: Sequence[np.ndarray]) -> Any:
        return self._sayable("decide", cast(Any, self.devices[number]).decide(Sampling(**settings), *arrays))

    def _rotate(self, folder: str, side: Side, x: np.ndarray, positions: np.ndarray) -> Any:
        rotate = self.made.rotary()
        if rotate is None:
            raise NotOffered(f"--device {self.made.name}: its module has no function rotate")
        return self._sayable("rotate", rotate(Path(folder), side, x, positions))

    def _modules(self, number: int, declared: Sequence[str], name: str, golden: Sequence[str]) -> list[str]:
        from parity.golden.trust import device_modules, loaded

        producer = SimpleNamespace(modules=tuple(golden))
        return sorted(device_modules(self.devices[number], declared, name, producer) | loaded(producer))

    def _sayable(self, call: str, value: Any) -> Any:
        try:
            packed(value)
        except TypeError as error:
            raise DeviceFailed(self.made.name, call, f"it returned {error}") from None
        except Exception as error:
            raise DeviceFailed(self.made.name, call, f"it returned what cannot be sent: {error_text(error)}") from None
        return value


def _settings(said: dict[str, Any] | None) -> Sampling | None:
    return None if said is None else Sampling(**said)


def _tap(served: DeviceServer, offers: Sequence[str], lane: str = "") -> Callable[..., Any]:
    """A tap with the optional methods of the one over there; `lane` goes in front of its stages' names."""
    if "unwatched" in offers:
        return UNWATCHED

    def call(self: object, stage: str, value: np.ndarray) -> Any:
        return served.tapped("call", lane + stage, value)

    def ranks(self: object, stage: str, shards: Sequence[np.ndarray], sharding: str) -> Any:
        return served.tapped("ranks", lane + stage, list(shards), sharding=sharding)

    def rows(self: object, stage: str, value: np.ndarray, first: int, total: int) -> Any:
        return served.tapped("rows", lane + stage, value, first=int(first), total=int(total))

    optional = {"ranks": ranks, "rows": rows}
    methods = {"__call__": call, **{name: method for name, method in optional.items() if name in offers}}
    tap: Callable[..., Any] = type("Tap", (), methods)()
    return tap


def main(descriptor: int) -> None:
    """Serve a socket until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other one's, who ends this one
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # short of memory, the system ends this one first
    DeviceServer(socket.socket(fileno=descriptor)).serve()
    os._exit(0)
