"""The digest of a manifest over its own bytes: an edit by hand is seen, whatever it says."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

UNSEALED = "0" * 64
"""Stands in the place of the digest while the digest is taken."""

_LAST = re.compile(rb'"digest":\s{0,9}"([0-9a-f]{64})"\s{0,9}\}\s{0,9}\Z')


def sealed(manifest: Mapping[str, Any]) -> bytes:
    """A manifest as JSON, with its digest as the last field."""
    data = json.dumps(
        {**{name: value for name, value in manifest.items() if name != "digest"}, "digest": UNSEALED}
    ).encode()
    return data[: -len(UNSEALED) - 2] + digest(data).encode() + b'"}'


def digest(data: bytes) -> str:
    """sha256 of a manifest's bytes with zeros in the place of its digest; '' where that is not the last field."""
    found = _LAST.search(data, max(0, len(data) - 256))
    if not found:
        return ""
    first, end = found.span(1)
    total = hashlib.sha256(memoryview(data)[:first])
    total.update(UNSEALED.encode() + data[end:])
    return total.hexdigest()
