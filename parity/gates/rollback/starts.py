"""Where histories start: golden prompts cut short, some just before the sliding window and some past it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parity.errors import UsageError
from parity.files import config_of
from parity.golden.views import TrustedGolden

SHORT = (2, 9)


def window(golden: TrustedGolden) -> int | None:
    """The target's sliding window, from its checkpoint's config; None where it has none or cannot be read."""
    try:
        found = config_of(Path(golden.manifest.model.target.path)).get("sliding_window")
    except UsageError:
        return None
    return found if isinstance(found, int) and found > 0 else None


def starts(golden: TrustedGolden, most: int) -> list[tuple[int, list[int]]]:
    """(number of a golden prompt, its last tokens), of several lengths up to `most`."""
    prompts, edge = golden.manifest.case.prompts, window(golden) or 32
    lengths = [length for length in (*SHORT, edge - 6, edge - 1, edge + 8) if 2 <= length <= most]
    return [(n % len(prompts), repeated(prompts[n % len(prompts)].ids, length)) for n, length in enumerate(lengths)]


def repeated(ids: Sequence[int], length: int) -> list[int]:
    """The last `length` tokens of the prompt, said as often as that takes."""
    return (list(ids) * -(-length // len(ids)))[-length:]
