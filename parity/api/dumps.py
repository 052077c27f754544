"""Goldens and runs: opened, verified, taken over from another tool, handed on, told in a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parity.api.arguments import File, path_or_none, refuse_unopened
from parity.progress import Progress, quiet

if TYPE_CHECKING:
    from parity.golden.store import Dump
    from parity.golden.verify import Verified
    from parity.golden.views import DumpView, TrustedGolden
    from parity.imports.placing import Placing
    from parity.reports.page.night import NightView


def open_golden(
    folder: File | None = None,
    *,
    target: File | None = None,
    drafter: File | None = None,
    sampled: bool = False,
    smaller: bool = False,
) -> TrustedGolden:
    """Open a golden to judge by: nothing behind it changed since it was dumped, and it names its source.

    What judges takes what this returns; `read_dump` only looks.

    Args:
        folder: the newest golden of a whole case below `parity.home.home()` by default.
        target, drafter: where its checkpoints are now, if they moved.
        sampled: it may sample: for `run_device` and `compare_dumps`; what else judges compares greedy decoding.
        smaller: it may keep sketches, best logits or some positions: for the same two.

    Raises:
        UsageError: there is none, it is a device's run, stale, names no source, or a checkpoint is not the golden's.
    """
    from parity.golden.choice import Wanted, open_for_judging
    from parity.home import home

    return open_for_judging(
        Wanted(path_or_none(folder), path_or_none(target), path_or_none(drafter)), home() / "goldens", sampled, smaller
    )


def read_dump(folder: File) -> Dump:
    """Open a golden or a run only to look at it.

    Raises:
        UsageError: it is neither, or damaged.
    """
    from parity.golden.store import Dump

    return Dump(Path(folder))


def verify_golden(golden: DumpView, progress: Progress = quiet) -> Verified:
    """Dump a golden's case once more and compare every tensor's bytes.

    Raises:
        UsageError: a checkpoint changed, the golden's files are damaged, or nothing here can dump it once more.
    """
    from parity.golden.verify import check_bytes, verified, write_prompts
    from parity.partial import scratch
    from parity.producers import dump_again, how_made

    refuse_unopened(golden=golden)
    how_made(golden)
    check_bytes(golden)
    with scratch("verify") as folder:
        prompts = write_prompts(golden, folder / "prompts.jsonl")
        return verified(golden, dump_again(golden, folder / "again", prompts, progress))


def import_dump(
    paths: Sequence[File],
    source: str,
    golden: DumpView,
    out: File,
    names: str | None = None,
    reference: str = "",
    partial: bool = False,
) -> Placing:
    """Write another tool's dump as a run folder, to be compared with a golden; what of it was mapped, and what was not.

    Args:
        paths: files or folders.
        source: whose tool wrote them, one of `parity.imports.READERS`.
        out: a new folder.
        names: a file, or the name of a shipped map, from the tool's names to stages; without one they must be stages.
        reference: `NAME==VERSION` of an independent implementation that the dump comes from: a golden is written, to be
            compared with another one; it judges no device.
        partial: the run shows what the dump holds, and no more.

    Raises:
        UsageError: the dump cannot be read, does not fit the map or the golden's pair, or is of other tokens.
    """
    from parity.imports.names import read_map
    from parity.imports.run import ImportRequest, import_run
    from parity.imports.torch_file import torch_load

    refuse_unopened(golden=golden)
    files = tuple(map(Path, paths))
    return import_run(ImportRequest(source, files, read_map(names), golden, Path(out), torch_load, reference, partial))


def export_dump(dump: DumpView, out: File) -> int:
    """Write a golden or a run as one .npz of plain arrays; how many.

    Raises:
        UsageError: the file exists already.
    """
    from parity.imports.files import export_npz

    refuse_unopened(dump=dump)
    return export_npz(dump, Path(out))


def write_report(
    folder: File,
    out: File | None = None,
    *,
    golden: TrustedGolden | None = None,
    policy: str | None = None,
    history: str = "",
) -> NightView:
    """Write one HTML page that tells a night or a run; what it shows. Needs the extra `nightly`.

    Args:
        folder: of a night, or of a run.
        out: the file; report.html in the folder by default.
        golden: that a run is judged by.
        policy: bounds of a run; those of its precision by default.
        history: URL of the history to read changes and trends from.

    Raises:
        UsageError: the folder is neither, or a run comes without a golden.
    """
    from parity.reports.page.night import view_of
    from parity.reports.page.render import write

    refuse_unopened(golden=golden)
    view = view_of(Path(folder), golden, policy, history or None)
    write(view, Path(out) if out else Path(folder) / "report.html")
    return view
