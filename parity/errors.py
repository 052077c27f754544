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
