"""Commands that write: how each is set up, and how one sees that what it wrote is whole."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parity.golden.store import Dump
from tests.torture.bases import TINY, Bases, lay_out, manifest, rewrite, sealed
from tests.torture.child import ROOT

REPLAY = "tests.torture.replay:load"


@dataclass(frozen=True)
class Operation:
    """A command that writes.

    Args:
        base: evidence laid out in the attempt's folder: small, real or none.
        arguments: of `parity`, in `work`.
        prepare: further files.
        out: what it writes, below `work`; may be a folder's pattern.
        whole: raises unless what `out` names is whole.
        did: raises where something is missing beside what `out` names, once the command says that it is done.
        seconds: until it hangs.
        default: what it writes may become the newest golden.
    """

    name: str
    base: str
    arguments: tuple[str, ...]
    out: str
    whole: Callable[[Path], None]
    prepare: Callable[[Path, Bases], None] = lambda work, bases: None
    seconds: float = 60.0
    default: bool = False
    did: Callable[[Path], None] | None = None

    def writes(self, name: str) -> bool:
        """Whether a file below `work` is of what it writes."""
        return f"{name}/".startswith(f"{self.out}/")

    def done(self, out: Path) -> None:
        """Raises unless all that it does is done."""
        if not out.exists():
            raise ValueError("nothing is there")
        self.whole(out)
        if self.did:
            self.did(out)

    def lay_out(self, bases: Bases, folder: Path) -> Path:
        """Everything it reads, in a fresh folder."""
        if self.base:
            lay_out(getattr(bases, self.base), folder)
        work = folder / "work"
        (work / "home").mkdir(parents=True, exist_ok=True)
        self.prepare(work, bases)
        return work


def _dump(path: Path) -> None:
    """Every tensor of a dump has its digest, and every shard is listed."""
    dump = Dump(path)
    for row in dump.manifest.tensors:
        dump.read(row)


def _json(path: Path) -> None:
    json.loads(path.read_bytes())


def _page(path: Path) -> None:
    if not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("the page has no end")


def _npz(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if archive.testzip():
            raise ValueError("damaged")


def _night(path: Path) -> None:
    """Every result and every file of history can be read."""
    from parity.history import load

    for file in (*path.glob("cells/*.json"), *path.glob("night.json")):
        _json(file)
    if any(path.parent.glob("history/date=*/[!.]*")):
        load(str(path.parent / "history"))


def _recorded(path: Path) -> None:
    """The night is in the history, and everything else that is written at its end is there."""
    from parity.history import load
    from parity.nightly.folder import NightFolder

    folder = NightFolder(path)
    if folder.night.name not in set(load(str(path.parent / "history"))["night"]):
        raise ValueError("the night is not in the history")
    if missing := [name for name in ("results.jsonl", "junit.xml", "report.html") if not (path / name).is_file()]:
        raise ValueError(f"{missing[0]} is not there")


def _sealed(manifest: Path) -> None:
    """A manifest over the tensors that were there before."""
    _dump(manifest.parent)


def _corroborated(manifest: Path) -> None:
    if not Dump(manifest.parent).manifest.corroborations:
        raise ValueError("the golden does not say who corroborates it")


def _packed(work: Path, bases: Bases) -> None:
    """The run as one file of plain arrays, to be imported."""
    from parity.imports.files import export_npz

    packed = bases.folder / "run.npz"
    if not packed.exists():
        export_npz(Dump(bases.small / "run"), packed)
    shutil.copy(packed, work / "run.npz")


def _kept(work: Path, bases: Bases) -> None:
    """As `_packed`, with a golden in the place where one is looked for."""
    _packed(work, bases)
    shutil.copytree(bases.small / "golden", work / "home" / "goldens" / "old")


def _witness(work: Path, bases: Bases) -> None:
    """The golden once more, by somebody else."""
    shutil.copytree(bases.small / "golden", work / "other")
    data = manifest(work / "other")
    data["producer"] |= {"name": "other", "modules": ["synthetic.other"], "source_digest": "other"}
    rewrite(work / "other" / "manifest.json", sealed(data))


def _unpacked(work: Path, bases: Bases) -> None:
    shutil.unpack_archive(ROOT / "fixtures/nights/small.zip", work / "night")


def _matrix(work: Path, bases: Bases) -> None:
    """One cell on the golden of the tiny pair."""
    data = manifest(work / "golden")
    lines = ["k = [4]", "[cases.one]", f"target = '{TINY / 'target'}'", f"drafter = '{TINY / 'drafter'}'"]
    lines += [f"max_new_tokens = {data['case']['max_new_tokens']}", f"golden = '{work / 'golden'}'", "[devices]"]
    lines += [
        f"replay = '{REPLAY}'",
        "[run]",
        "gates = ['provenance']",
        "diagnose = false",
        "cell_timeout = 60",
        "workers = 1",
    ]
    (work / "matrix.toml").write_text("\n".join(lines) + "\n")


def _prompt(work: Path, bases: Bases) -> None:
    (work / "one.jsonl").write_text('{"id": "one", "ids": [1, 2, 3, 4, 5]}\n')


GOLDEN = ("--golden", "golden")
CORROBORATED = "golden/manifest.json"
"""The one file that may change of a golden that was there before."""
OPERATIONS = (
    Operation("run", "real", ("run", "--device", REPLAY, *GOLDEN, "--out", "made"), "made", _dump),
    Operation(
        "import", "small", ("import", "--from", "files", "run.npz", *GOLDEN, "--out", "made"), "made", _dump, _packed
    ),
    Operation(
        "import of a golden",
        "small",
        ("import", "--from", "files", "run.npz", *GOLDEN, "--reference", "other==1", "--out", "home/goldens/new"),
        "home/goldens/new",
        _dump,
        _kept,
        default=True,
    ),
    Operation("export", "small", ("export", "run", "made.npz"), "made.npz", _npz),
    Operation("diff --json", "small", ("diff", "run", *GOLDEN, "--json", "made.json"), "made.json", _json),
    Operation("report", "", ("report", "night", "--out", "made.html"), "made.html", _page, _unpacked),
    Operation("report of a run", "small", ("report", "run", *GOLDEN), "run/report.html", _page),
    Operation(
        "night",
        "real",
        ("nightly", "matrix.toml", "--out", "night", "--history", "history"),
        "night",
        _night,
        _matrix,
        150.0,
        did=_recorded,
    ),
    Operation(
        "corroborate", "small", ("corroborate", "golden", "other"), CORROBORATED, _sealed, _witness, did=_corroborated
    ),
    Operation(
        "dump",
        "",
        ("dump-golden", "--prompts", "one.jsonl", "--max-new-tokens", "2", "--out", "made"),
        "made",
        _dump,
        _prompt,
        150.0,
    ),
)
