"""Partial KV: which pages of its own cache a row of a drafter attends to.

A page is a run of cache rows. A row at position t, in page c = t // page, sees the first `sink` pages, the last
`window` ones up to its own, and the `retrieved` best of those between, each up to its own position:

    sink <= p <= c - window    the pages that it may retrieve

A page's summary is the largest and the smallest key in each dimension, after RoPE; its score is the larger of the two's
products with the query, averaged over all heads. So a row's pages follow from its position, its query and the rows
before it alone, not from the passes in which those came: a chunked prefill is a whole one, and continuing from a cache
is starting fresh. (SpecPV, arXiv 2512.02337, section 3, does this for the target's verify pass, a kv head at a time.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from parity.errors import UsageError
from parity.families import family_of

FORM = r"(\d{1,6})\+(\d{1,6})\+(\d{1,6})x(\d{1,6})"
EXAMPLE = "1+4+2x16"


@dataclass(frozen=True)
class PartialKV:
    """Sizes in pages, and the rows of a page; `1+4+2x16` in words: sink, retrieved, window, page."""

    sink: int
    retrieved: int
    window: int
    page: int

    def __str__(self) -> str:
        return f"{self.sink}+{self.retrieved}+{self.window}x{self.page}"

    @property
    def rows(self) -> int:
        """The most rows of the cache that one row attends to."""
        return (self.sink + self.retrieved + self.window) * self.page

    def pages(self, positions: int) -> int:
        """Pages of a cache of so many rows, the last one perhaps not full."""
        return -(-positions // self.page)

    @classmethod
    def parse(cls, text: str) -> PartialKV | None:
        """Read the words; None for the full cache, which is the empty text.

        Raises:
            UsageError: they are none, or leave a row without a page of its own or without one to retrieve.
        """
        if not text:
            return None
        sizes = re.fullmatch(FORM, text, re.ASCII)
        if sizes is None:
            raise UsageError(f"partial KV {text[:80]!r}: SINK+RETRIEVED+WINDOWxPAGE is due, as in {EXAMPLE}")
        made = cls(*map(int, sizes.groups()))
        if min(made.retrieved, made.window, made.page) < 1:
            raise UsageError(f"partial KV {text}: at least 1 page retrieved, 1 page of window and 1 row a page")
        return made

    @classmethod
    def of(cls, text: str, family: str, positions: int) -> PartialKV | None:
        """Read the words for a drafter of this family over a cache of so many rows.

        Raises:
            UsageError: as `parse`; the family has no cache that grows with the text, or all of it is attended to.
        """
        made = cls.parse(text)
        if made is None:
            return None
        if not family_of(family).pages:
            raise UsageError(f"partial KV {text}: a {family} drafter has no rows that attend to a cache of their own")
        if made.rows >= positions:
            raise UsageError(
                f"partial KV {text}: {made.rows} rows are all of a cache of {positions}: take fewer or smaller pages"
            )
        return made
