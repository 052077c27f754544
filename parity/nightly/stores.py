"""Goldens at an fsspec URL: fetched whole and verified, or kept there for others; and the folder where they lie here."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from parity.errors import UsageError
from parity.golden.manifest import FILE, Manifest
from parity.golden.store import Dump
from parity.home import home
from parity.partial import partial_folder
from parity.remote import Unreachable, ask, open_store, said


def cache() -> Path:
    """Where goldens are kept between nights: `$PARITY_HOME/nightly/goldens`."""
    return home().resolve() / "nightly" / "goldens"


def fetch(url: str) -> Path:
    """Copy a golden to this machine: its manifest and the shards that it names; verified, then put in place whole.

    One that is here already, with this manifest, is not fetched again.

    Raises:
        UsageError: there is none, or a tensor is not what the manifest says.
        Unreachable: its store does not answer.
    """
    files, root = open_store(url)
    data = asked(url, lambda: files.cat_file(f"{root}/{FILE}"))
    place = cache() / f"fetched-{hashlib.sha256(url.encode()).hexdigest()[:8]}-{hashlib.sha256(data).hexdigest()[:24]}"
    if _whole(place):
        return place
    with partial_folder(place) as partial:
        (partial / FILE).write_bytes(data)
        for shard in sorted({row.shard for row in Manifest.read(partial).tensors}):
            if PurePosixPath(shard).name != shard or "\\" in shard:
                raise UsageError(f"the golden {url} names a shard outside its folder: {shard!r}")
            asked(url, lambda: files.get_file(f"{root}/{shard}", str(partial / shard)))
        _check(Dump(partial), url)
        return placed(partial, place)


def publish(folder: Path, url: str) -> str:
    """Copy a golden to a store, its manifest last: who finds the manifest finds all. Nothing where it is there already.

    Raises:
        Unreachable: the store does not take it.
    """
    files, root = open_store(url)
    try:
        if not files.exists(f"{root}/{FILE}"):
            files.makedirs(root, exist_ok=True)
            for path in sorted(folder.glob("*.safetensors")):
                files.put_file(str(path), f"{root}/{path.name}")
            files.put_file(str(folder / FILE), f"{root}/{FILE}")
    except Exception as error:
        raise Unreachable(f"the golden cannot be kept at {url}: {said(error)}") from None
    return url


def _whole(folder: Path) -> bool:
    try:
        _check(Dump(folder), str(folder))
    except UsageError:
        shutil.rmtree(folder, ignore_errors=True)
        return False
    return True


def _check(golden: Dump, named: str) -> None:
    """Every tensor is what the manifest says."""
    try:
        for place in golden.rows:
            golden.stored(*place)
    except UsageError as error:
        raise UsageError(f"the golden {named} is damaged: {error}") from None


def placed(made: Path, place: Path) -> Path:
    """Rename; who comes second finds the first one's."""
    try:
        made.rename(place)
    except OSError:
        if not (place / FILE).is_file():
            raise
    return place


def asked(url: str, question: Callable[[], Any]) -> Any:
    """What a golden's store answers; see `parity.remote.ask`."""
    try:
        return ask(url, question)
    except FileNotFoundError:
        raise UsageError(f"there is no golden at {url}") from None
