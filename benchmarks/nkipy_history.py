"""What parity says of every commit of AWS's NKIPy example (gpt-oss with a P-EAGLE drafter), host-visible stages only.

    python benchmarks/nkipy_history.py CLONE [--commit 719ed2f ...] [--json FILE]

CLONE is a git repository of https://github.com/aws-neuron/nkipy (a bare one will do). Every commit that touched the
example since its drafter was added is unpacked to a temporary folder and driven through `docs/ports/nkipy_gpt_oss.py`:
chained and local, in float32 and in bfloat16; a failing one is diagnosed. Commits whose modules have the same syntax
tree (comments and docstrings apart) share one measurement.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
sys.path[0] = str(HOUSE)  # or this file's folder would be searched for the packages

from parity.api import compare_dumps, diagnose_device, open_golden, run_device  # noqa: E402
from parity.golden.views import TrustedGolden  # noqa: E402
from parity.oracles import ReferenceRerun  # noqa: E402

DEVICE = "docs.ports.nkipy_gpt_oss:load"
EXAMPLE = "examples/models/gpt_oss"
DRAFTERS = ("peagle", "eagle")
UNUSED = ("_moe_bench", "_ntff_stats", "_sweep", "test_", "run_drafter")
PROMPTS = 2
PRECISIONS = ("float32", "bfloat16")

PROOFS = {
    "719ed2f": "moves the capture of the taps behind the layer and keeps the numbers: here they enter the layers, as "
    "they should; what else is wrong stays",
    "1402502": "documents only: the same answer",
    "2c8936b": "adds a file that nothing imports: the same answer",
    "0eccb36": "documents only: the same answer",
    "a0982c1": "names a drafter that never saw the prompt, taps one layer late, and prompts without the chat template; "
    "takes out the pass that wrote a row of its own and put every verify pass one position ahead",
    "7bd2fd5": "the drafter moves to the device: the same tensors, computed twice",
    "fcdb576": "C passes of one row become one pass: the same tensors",
    "5fe2a70": "four kernels become one: the same tensors",
    "e505269": "another default K: the same answer",
    "a5d15b0": "a folder is renamed: the same answer",
    "a08b216": "adds a function that nothing calls: the same answer",
    "5f161c8": "a benchmark alone: the same answer",
    "778bec6": "adds functions that nothing calls: the same answer",
    "e52a63d": "the default stays the loop: the same tensors",
    "d793c99": "takes out a function that nothing calls",
    "6b87d5f": "takes out plain decoding with two buffers, which this loop does not run",
    "9652158": "moves a kernel that is not run off the hardware",
    "33e4e4a": "moves the expert loop to a function: the same tensors",
    "281677b": "takes out the drafter in PyTorch, no longer the default",
    "fb15603": "renames, takes out state that nothing reads",
    "1941446": "one RoPE table for all layers: the same tensors",
    "6ae12cb": "pads every draft pass to 2K rows: the same logical rows",
    "22edaf0": "an environment variable: the same answer",
    "9100c45": "another import path: the same answer",
    "af76b7a": "documents only: the same answer",
    "7a2e31a": "documents only: the same answer",
    "126df29": "documents only: the same answer",
    "630f772": "documents only: the same answer",
    "2716293": "documents only: the same answer",
    "714a9e0": "documents only: the same answer",
    "5decb64": "documents only: the same answer",
    "a9882c1": "documents only: the same answer",
    "4e896b0": "documents only: the same answer",
    "448358f": "wording, and a field that nothing reads: the same answer",
    "4b9c83a": "wording, and a field that nothing reads: the same answer",
    "8d152f1": "takes out tools: the same answer",
    "9c964ca": "takes out a tool: the same answer",
    "ebd10d2": "runs the prefill twice, once to warm up: the same tensors, so nothing reads what the first one left",
    "89f18e7": "runs the prefill twice, once to warm up: the same tensors, so nothing reads what the first one left",
    "33f81f0": "takes out state that nothing reads",
    "8db3b98": "counts tokens otherwise where it prints a rate: the same tensors",
    "22635db": "another way to the same ids",
    "38e68eb": "the same tree: the same answer",
    "8008f47": "another import path: the same answer",
    "be0fb03": "another import path: the same answer",
}
"""What the diff against the next commit proves about a commit's answer."""


def git(clone: Path, *arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=clone, check=True, capture_output=True, text=True).stdout


def commits(clone: Path, only: list[str]) -> Iterator[tuple[str, str, str]]:
    """Commit, date and subject, oldest first."""
    log = git(clone, "log", "--all", "--reverse", "--format=%h\t%ad\t%s", "--date=short", "--", EXAMPLE)
    for line in log.splitlines():
        commit, date, subject = line.split("\t", 2)
        if not only or commit in only:
            yield commit, date, subject


def unpack(clone: Path, commit: str, folder: Path) -> Path | None:
    """The example at a commit; None where it has no drafter."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit, EXAMPLE], cwd=clone, check=True, capture_output=True)
    subprocess.run(["tar", "x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder if any((folder / EXAMPLE / name).is_dir() for name in DRAFTERS) else None


class Bare(ast.NodeTransformer):
    """A module without its docstrings."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            kept = [one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]
            node.body = kept or [ast.Pass()]
        return node


def code(root: Path) -> str:
    """A digest of what the example's modules do, whatever the drafter's folder is called."""
    sha = hashlib.sha256()
    for path in sorted((root / EXAMPLE).rglob("*.py")):
        if not path.name.startswith(UNUSED):
            tree = Bare().visit(ast.parse(path.read_text().replace("peagle", "eagle")))
            sha.update(str(path.relative_to(root)).replace("peagle", "eagle").encode() + ast.dump(tree).encode())
    return sha.hexdigest()


def judged(golden: TrustedGolden, root: Path, precision: str, out: Path) -> dict[str, Any]:
    """Both comparisons of one commit and precision, and a diagnosis where one fails."""
    os.environ["PARITY_NKIPY_EXAMPLE"] = str(root)
    row: dict[str, Any] = {}
    for mode in ("chained", "local"):
        with clock(row.setdefault(mode, {})):
            run = run_device(golden, DEVICE, mode, precision, out=out / f"{precision}-{mode}")
            report = compare_dumps(golden, run, rerun=ReferenceRerun())
        row[mode] |= {"verdict": report.verdict, "first": report.first_summary, "run": str(run.folder)}
        kinds = {(finding.kind, finding.stage.split(".")[0]) for finding in report.findings}
        row[mode]["findings"] = [f"{len(report.findings)} findings: {sorted(kinds)}"] if kinds else []
        failing = [stage.stage for stage in report.stages if stage.verdict not in ("pass", "warn")]
        row[mode] |= {"failing": failing, "acceptance": str(report.acceptance)}
    if any(row[mode]["verdict"] not in ("pass", "warn") for mode in ("chained", "local")):
        with clock(row.setdefault("diagnosis", {})):
            found = diagnose_device(golden, DEVICE, precision)
        row["diagnosis"] |= said(found)
    return row


def said(found: Any) -> dict[str, Any]:
    """What a diagnosis says: its causes, and what it leaves unexplained."""
    if found is None or isinstance(found, list):
        return {"causes": [], "unexplained": "no stage fails; " + "; ".join(map(str, found or ()))}
    causes = [f"{cause.says} ({cause.hypothesis})" for cause in found.causes]
    left = found.unexplained.stage if found.unexplained else ""
    return {"causes": causes, "unexplained": left, "trials": found.trials}


@contextmanager
def clock(into: dict[str, Any]) -> Iterator[None]:
    """Seconds on the wall and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    into |= {"seconds": round(time.perf_counter() - wall, 1), "cpu": round(time.process_time() - cpu, 1)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, one a commit."""
    heads = (
        "commit | float32: chained, local | bfloat16 | first shown stage | named | CPU s | what the next diff proves"
    )
    lines = [f"| {heads} |", "|" + "---|" * 7]
    for row in rows:
        subject = row["subject"].replace("|", "/")
        cells = [row.get("as", ""), "", "", "", ""] if "as" in row else _cells(row["judged"])
        cells = [f"`{row['commit']}` {row['date']} {subject}", *cells, PROOFS.get(row["commit"], "")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(judged: dict[str, Any]) -> list[str]:
    """Verdicts of each precision, and what the first of them that fails says."""
    verdicts = [f"{one['chained']['verdict']}, {one['local']['verdict']}" for one in judged.values()]
    told = {one["chained"]["first"] or one["local"]["first"]: one for one in judged.values()}
    named = [
        ", ".join(cause.rpartition("(")[2].rstrip(")") for cause in one["diagnosis"]["causes"]) or "nothing"
        for one in judged.values()
        if "diagnosis" in one
    ]
    left = {one["diagnosis"]["unexplained"] for one in judged.values() if "diagnosis" in one} - {""}
    causes = " / ".join(dict.fromkeys(named)) + (f"; left: {', '.join(sorted(left))}" if left else "")
    seconds = [one[part]["cpu"] for one in judged.values() for part in ("chained", "local")]
    slow = [f"{one['diagnosis']['cpu']:.0f}" for one in judged.values() if "diagnosis" in one]
    cpu = f"{sum(seconds):.0f}" + (f"; diagnosis {', '.join(slow)}" if slow else "")
    return [*verdicts, *[""] * (2 - len(verdicts)), " / ".join(filter(None, told)), causes, cpu]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("--commit", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path, help="print what --json wrote before, measure nothing")
    parser.add_argument("--work", type=Path, help="a new folder that is kept; a temporary one by default")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text())))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(exist_ok=True)
        prompts = (HOUSE / "fixtures/tiny/prompts/chat.jsonl").read_text().splitlines()[:PROMPTS]
        (work / "prompts.jsonl").write_text("\n".join(prompts))
        dump = ("dump-golden", "--prompts", str(work / "prompts.jsonl"), "-k", "4", "--max-new-tokens", "12")
        subprocess.run([sys.executable, "-m", "parity", *dump, "--out", str(work / "golden")], cwd=HOUSE, check=True)
        golden = open_golden(work / "golden")
        rows, seen = [], {}
        for commit, date, subject in commits(options.clone, options.commit):
            row: dict[str, Any] = {"commit": commit, "date": date, "subject": subject}
            rows.append(row)
            root = unpack(options.clone, commit, work / commit)
            digest = code(root) if root else ""
            if root is None:
                row["as"] = "no drafter"
            elif digest in seen:
                row["as"] = f"as {seen[digest]}"
            else:
                seen[digest] = commit
                row["judged"] = {
                    one: judged(golden, root, one, work / "runs" / commit) for one in options.precision or PRECISIONS
                }
            print(*table([row]).splitlines()[2:], file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
        print(table(rows))


if __name__ == "__main__":
    main()
