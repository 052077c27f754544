"""What the reader did wrong, or what is missing: one sentence each, and an exit code."""

from __future__ import annotations


class ParityError(Exception):
    """Base of every error a user sees as one sentence; `exit_code` ends the command."""

    exit_code = 2

    def __init__(self, sentence: str = ""):
        """A name in the sentence may hold line breaks: it stays one line."""
        super().__init__(" ".join(str(sentence).splitlines()))


class UsageError(ParityError):
    """Wrong option, unreadable file, checkpoint or configuration that does not fit."""


class Inconclusive(ParityError):
    """The evidence a verdict needs is missing."""

    exit_code = 3


class NotOffered(Inconclusive):
    """The device does not offer what a check needs: the check was not made."""


class NotShown(Inconclusive):
    """A check needs what the device's description says that it does not show: it is not judged."""


class DeviceFailed(Inconclusive):
    """Code of a device raised: it gives no evidence.

    Args:
        device: as given to `--device`.
        call: what was asked of it: a verb, `factory`, `describe`, `import`, `rotate`, `multiply`.
        said: the exception in words.
        at: file and line of the device that raised, or ''.
        refuses: it was a `ValueError` or an error of parity: how a device refuses what does not fit.

    Attributes:
        place: prompt and round, where it was driven.
    """

    def __init__(self, device: str, call: str, said: str, at: str = "", refuses: bool = False):
        super().__init__(said)
        self.device, self.call, self.said, self.at, self.refuses, self.place = device, call, said, at, refuses, ""

    def __str__(self) -> str:
        on = f" on {self.place}" if self.place else ""
        return f"device {self.device} failed in {self.call}{on}: {self.said}" + (f" ({self.at})" if self.at else "")


class DeviceEnded(DeviceFailed):
    """A device ended or tried to end its process, hung, or took too much memory: no defect that a gate can judge."""

    def __str__(self) -> str:
        on = f" on {self.place}" if self.place else ""
        return f"device {self.device} {self.said} in {self.call}{on}" + (f" ({self.at})" if self.at else "")
