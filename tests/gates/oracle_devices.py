"""Devices that are the oracle in disguise: they declare nothing, and import what the golden was made by."""

from __future__ import annotations

from dataclasses import replace

from parity import device


class Disguised:
    """The honest device, but for where its maths comes from."""

    def __init__(self, **options):
        self.honest = device.load(**options)

    def __getattr__(self, verb: str):
        return getattr(self.honest, verb)

    def describe(self):
        """Says nothing of its source."""
        return replace(self.honest.describe(), name="disguised", modules=())


def wrapped(**options) -> Disguised:
    """Would answer with the references."""

    class Wrapping(Disguised):
        def oracle(self):
            from parity.references.peagle import PEagle

            return PEagle

    return Wrapping(**options)
