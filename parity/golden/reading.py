"""Reading manifest.json: the one door through which the manifest of a dump comes in, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parity import files, limits
from parity.errors import UsageError
from parity.golden.consistent import refuse_contradictions
from parity.golden.digests import own_digest
from parity.golden.manifest import FILE, Manifest
from parity.validation import first_mistake

OLDER = "`parity seal DIR` brings a dump of an older parity up to date"

KEPT, KEPT_BYTES = 4, 2 << 20
"""How many manifests of this size a process remembers by their bytes: gates and nights open one golden many times."""

LEAVES = frozenset((str, int, float, bool, type(None)))
"""What holds no keys."""

KEY_END = re.compile(rb'"\s*:')
"""Ends every key of a JSON text; what stands in a string may look like one, never the other way round."""

_checked: dict[bytes, Manifest] = {}


def read_manifest(folder: Path) -> Manifest:
    """Read `folder`/manifest.json.

    Raises:
        UsageError: it is missing, does not follow the schema, contradicts itself, or is not what was written.
    """
    path = folder / FILE
    if not folder.exists():
        raise UsageError(f"{folder}: there is no such folder")
    if not path.exists():
        raise UsageError(f"{folder} is no golden or run folder: {path} cannot be read")
    data = files.content(files.inside(folder, FILE, str(folder)), limits.MANIFEST_BYTES)
    return checked_manifest(data, path)


def checked_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest in these bytes; `path` is for sentences.

    Raises:
        UsageError: see `read_manifest`.
    """
    if data in _checked:
        return _checked[data]
    manifest = _parsed(data, path)
    if keys(manifest) != len(KEY_END.findall(data)):
        files.parsed(data, str(path))  # which refuses a key that is there twice; pydantic takes the last one
    if own_digest(data) != manifest.digest:
        raise UsageError(
            f"{path} is not what was written: its digest does not match it; make the dump anew (a program of "
            "your own that writes dumps seals them: `parity seal DIR`)"
        )
    refuse_contradictions(manifest, path)
    if len(data) <= KEPT_BYTES:
        _checked[data] = manifest
        while len(_checked) > KEPT:
            _checked.pop(next(iter(_checked)), None)
    return manifest


def _parsed(data: bytes, path: Path) -> Manifest:
    """The manifest in these bytes, as the schema has it.

    Raises:
        UsageError: they hold too much, do not follow the schema, or do not say which.
    """
    if files.values(data) > limits.VALUES:
        raise UsageError(f"{path} holds more than {limits.VALUES} values")
    try:
        manifest = Manifest.model_validate_json(data, strict=True)  # `true` is no 1
    except ValidationError as error:
        raise UsageError(f"{path} does not follow the golden format: {_mistake(error)}") from None
    if "schema_version" not in manifest.model_fields_set:
        raise UsageError(f"{path} does not follow the golden format: it does not say which; {OLDER}")
    return manifest


def keys(value: Any) -> int:
    """Keys of the JSON objects that a value was read from, each counted once."""
    kind = type(value)
    if kind in LEAVES:
        return 0
    if kind is tuple:
        return sum(map(keys, value)) if value and type(value[0]) not in LEAVES else 0
    if kind is dict:
        return len(value) + sum(map(keys, value.values()))
    return len(value.model_fields_set) + sum(map(keys, vars(value).values()))


def _mistake(error: ValidationError) -> str:
    """The first mistake, and what to do about an older version."""
    said = first_mistake(error)
    return said + (f"; {OLDER}" if said.startswith("schema_version") else "")
