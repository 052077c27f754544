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
from pathlib import Path
from typing import Any

HOUSE = Path(__file__).resolve().parents[1]
EXAMPLE = "examples/models/gpt_oss"
DRAFTERS = ("peagle", "eagle")
UNUSED = ("_moe_bench", "_ntff_stats", "_sweep", "test_", "run_drafter")
PROMPTS = 2
PRECISIONS = ("float32", "bfloat16")


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


def parity(*arguments: str, home: Path) -> tuple[int, dict[str, Any], float, str]:
    """Exit code, JSON, seconds and the last line of a command."""
    said, began = home / "said.json", time.perf_counter()
    said.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "parity", *arguments, "--json", str(said)],
        cwd=HOUSE,
        env={**os.environ, "PARITY_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
    return done.returncode, json.loads(said.read_text()) if said.exists() else {}, seconds, "".join(last)


def judged(root: Path, precision: str, home: Path) -> dict[str, Any]:
    """Both comparisons of one commit and precision, and a diagnosis where one fails."""
    device = ("--device", "docs.ports.nkipy_gpt_oss:load", "--precision", precision)
    os.environ["PARITY_NKIPY_EXAMPLE"] = str(root)
    row: dict[str, Any] = {}
    for mode in ("chained", "local"):
        status, said, seconds, last = parity("diff", *device, "--mode", mode, home=home)
        first = (said.get("first") or {}).get("stage", "") if said else last
        row[mode] = {
            "exit": status,
            "verdict": said.get("verdict", "none"),
            "first": first,
            "seconds": round(seconds, 1),
        }
        row[mode]["acceptance"] = said.get("acceptance")
    if any(row[mode]["exit"] for mode in ("chained", "local")):
        status, said, seconds, last = parity("diagnose", *device, home=home)
        causes = [cause.get("says") or cause.get("name") for cause in said.get("causes", [])]
        row["diagnosis"] = {"exit": status, "causes": causes, "seconds": round(seconds, 1), "last": last}
        row["diagnosis"]["unexplained"] = said.get("unexplained")
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| commit | subject | precision | chained | local | first shown stage | named | s |", "|" + "---|" * 8]
    for row in rows:
        head = f"`{row['commit']}` {row['date']} | {row['subject'].replace('|', '/')}"
        if "as" in row:
            lines.append(f"| {head} | | {row['as']} | | | | |")
        for precision, said in row.get("judged", {}).items():
            chained, local, named = said["chained"], said["local"], said.get("diagnosis", {})
            causes = "; ".join(map(str, named.get("causes", []))) or named.get("last", "")
            seconds = f"{chained['seconds'] + local['seconds']:.0f} + {named.get('seconds', 0):.0f}"
            first = chained["first"] or local["first"]
            verdicts = f"{chained['verdict']} | {local['verdict']}"
            lines.append(f"| {head} | {precision} | {verdicts} | {first} | {causes} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("--commit", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--precision", action="append", choices=PRECISIONS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", type=Path, help="a new folder that is kept; a temporary one by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        work.mkdir(exist_ok=True)
        prompts = (HOUSE / "fixtures/tiny/prompts/chat.jsonl").read_text().splitlines()[:PROMPTS]
        (work / "prompts.jsonl").write_text("\n".join(prompts))
        golden = ("dump-golden", "--prompts", str(work / "prompts.jsonl"), "-k", "4", "--max-new-tokens", "12")
        parity(*golden, home=work)
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
                row["judged"] = {one: judged(root, one, work) for one in options.precision or PRECISIONS}
            print(table([row]).splitlines()[2:], file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
        print(table(rows))


if __name__ == "__main__":
    main()
