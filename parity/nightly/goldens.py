"""The goldens of a night: made once, kept here or at an fsspec URL, fetched whole, and never an unfitting one."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from parity.errors import UsageError
from parity.golden.checkpoints import Checkpoint
from parity.golden.digests import digest_files
from parity.golden.manifest import FILE
from parity.golden.provenance import checkpoint
from parity.golden.reading import read_manifest
from parity.golden.store import Dump
from parity.golden.trust import DIGESTS, refuse_stale
from parity.golden.verify import check_bytes
from parity.home import home
from parity.nightly.process import Answer, GoldenJob
from parity.partial import partial_folder
from parity.remote import Unreachable, ask, open_store, said

GREEDY = "nothing, greedily"
"""What tokens are drawn by that are not."""


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
    with partial_folder(place) as folder:
        (folder / FILE).write_bytes(data)
        for shard in sorted({row.shard for row in read_manifest(folder).tensors}):
            if PurePosixPath(shard).name != shard or "\\" in shard:
                raise UsageError(f"the golden {url} names a shard outside its folder: {shard!r}")
            asked(url, partial(files.get_file, f"{root}/{shard}", str(folder / shard)))
        _check(Dump(folder), url)
        return placed(folder, place)


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
            golden.record(*place)
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


Make = Callable[[GoldenJob, Path], None]
"""Dumps the golden of a job into a new folder."""


def provide(job: GoldenJob, make: Make) -> Answer:
    """The golden of a job: the given one, the kept one, or a new one.

    Raises:
        UsageError: it does not fit the case, is damaged, or cannot be made.
        Unreachable: its store does not answer.
    """
    if job.given:
        return Answer(golden=str(local(job, job.given)), url=job.given if "://" in job.given else "")
    name = identity(job)
    folder = _kept(job, name) or _shared(job, name) or _made(job, name, make)
    return Answer(
        golden=str(folder), url=publish(folder, f"{job.share.rstrip('/')}/{_tagged(name, folder)}") if job.share else ""
    )


def local(job: GoldenJob, golden: str) -> Path:
    """A golden's folder on this machine, fetched where it is an URL.

    Raises:
        UsageError: it is no golden of this case.
    """
    folder = fetch(golden) if "://" in golden else Path(golden)
    fits(job, Dump(folder))
    if folder.resolve().is_relative_to(cache()):
        _settle(job, folder)
    return folder


def identity(job: GoldenJob) -> str:
    """What a made golden is kept under: the bytes of checkpoints and prompts, K and the budget.

    Raises:
        UsageError: a checkpoint or the prompts cannot be read.
    """
    sides = (_digests(checkpoint(Path(path))) for path in (job.target, job.drafter))
    parts: tuple[Any, ...] = (*sides, digest_files([Path(job.prompts)]), job.schedule or job.k, job.max_new_tokens)
    parts = (*parts, *filter(None, (job.kv_cache, job.sample)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def fits(job: GoldenJob, golden: Dump) -> None:
    """Whether a golden is of this case.

    Raises:
        UsageError: it is not.
    """
    manifest, case = golden.manifest, golden.manifest.case
    here = {"target": checkpoint(Path(job.target)), "drafter": checkpoint(Path(job.drafter))}
    prompts = digest_files([Path(job.prompts)]) if job.prompts else case.prompts_digest
    wrong = {
        "no golden": manifest.kind != "golden",
        f"K = {_said(case.ks)}, not {_said(job.schedule or (job.k,))}": case.ks != (job.schedule or (job.k,)),
        f"partial KV {case.partial_kv}": bool(case.partial_kv),
        f"caches in {case.kv_cache or 'the dtype of its passes'}": case.kv_cache != job.kv_cache,
        f"tokens drawn by {case.sampling or GREEDY}, not {job.sample or GREEDY}": case.sampling != job.sample,
        f"{case.max_new_tokens} new tokens, not {job.max_new_tokens}": case.max_new_tokens != job.max_new_tokens,
        f"other prompts than {job.prompts}": case.prompts_digest != prompts,
        **{
            f"another {side} than {getattr(job, side)}": _digests(getattr(manifest.model, side)) != _digests(local)
            for side, local in here.items()
        },
    }
    if reasons := [reason for reason, is_wrong in wrong.items() if is_wrong]:
        if reasons[0] == "no golden":
            raise UsageError(f"{golden.folder} is no golden")
        raise UsageError(f"the golden {golden.folder} is of {reasons[0]}")


def _said(ks: Sequence[int]) -> str:
    return ",".join(map(str, ks))


def _kept(job: GoldenJob, name: str) -> Path | None:
    """A golden of an earlier night that is whole and not stale; others of its name are removed."""
    for folder in sorted(cache().glob(f"{name}-*")):
        if _fit(job, folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
    return None


def _shared(job: GoldenJob, name: str) -> Path | None:
    """A golden that another machine has made and that is not stale."""
    if not job.share:
        return None
    files, root = open_store(job.share)
    manifests = asked(job.share, lambda: files.glob(f"{root}/{name}-*/{FILE}"))
    folders = (fetch(files.unstrip_protocol(str(path)).removesuffix(f"/{FILE}")) for path in sorted(manifests))
    return next((folder for folder in folders if _fit(job, folder)), None)


def _made(job: GoldenJob, name: str, make: Make) -> Path:
    with partial_folder(cache() / name) as folder:
        make(job, folder / "golden")
        _settle(job, folder / "golden")
        return placed(folder / "golden", cache() / _tagged(name, folder / "golden"))


def _tagged(name: str, folder: Path) -> str:
    """A golden's name with what it is made of: references that changed make another one."""
    manifest = read_manifest(folder)
    parts = (manifest.producer.source_digest, *sorted((row.variant, row.key, row.sha256) for row in manifest.tensors))
    return f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _fit(job: GoldenJob, folder: Path) -> bool:
    """Whether a kept golden can be used again."""
    try:
        fits(job, Dump(folder))
        _settle(job, folder)
        refuse_stale(Dump(folder))
        check_bytes(Dump(folder))
    except UsageError:
        return False
    return True


def _settle(job: GoldenJob, folder: Path) -> None:
    """Have a kept golden name the checkpoints where they are on this machine; their digests are the same."""
    golden = Dump(folder)
    model = golden.manifest.model
    paths = {side: str(Path(getattr(job, side)).resolve()) for side in ("target", "drafter")}
    if any(getattr(model, side).path != path for side, path in paths.items()):
        moved = {side: getattr(model, side).model_copy(update={"path": path}) for side, path in paths.items()}
        golden.manifest.model_copy(update={"model": model.model_copy(update=moved)}).replace(folder)


def _digests(side: Checkpoint) -> tuple[str, ...]:
    return tuple(getattr(side, field) for field in DIGESTS)
