"""The one place where foreign text becomes terminal text: names of devices, folders, prompts, stages draw nothing."""

from __future__ import annotations

import os

import click

_CONTROL = [
    *range(0x09),
    *range(0x0B, 0x20),
    *range(0x7F, 0xA0),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
]
_TABLE = {**dict.fromkeys((*_CONTROL, *range(0xD800, 0xE000)), "\ufffd")}


def printable(text: str) -> str:
    """Text that moves no cursor, colours nothing, writes forwards: what does is U+FFFD instead; lines and tabs stay."""
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print text that may hold foreign names."""
    try:
        click.echo(printable(text), err=err, nl=nl)
    except BrokenPipeError:
        unread(2 if err else 1)


def unread(descriptor: int = 1) -> None:
    """What nobody reads any more, as behind `| head -1`, goes nowhere from now on: the command ends by its verdict."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
