"""What a file from outside has wrong, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def first_mistake(error: ValidationError) -> str:
    """The first mistake and where it stands: `row 2.reason: Field required`; members of a list count from one."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ""
    for part in first["loc"]:
        where += f" {part + 1}" if isinstance(part, int) else f".{part}" if where else part
    return f"{where}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
