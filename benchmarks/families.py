"""Every family of drafters on every engine, by K and precision: `parity diff` in both modes, for docs/drafters.md.

python benchmarks/families.py                           # --engine, --family, --precision and -k for a part
python benchmarks/families.py --log families.jsonl      # each result as it comes; taken up where it stopped
python benchmarks/families.py --lanes 2 --lanes 5 -k 4  # several prompts at once, for docs/batches.md
    --sample temperature=1 --gate sampling              # of tokens that are drawn; a gate of what runs in one lane

A cell is chained / local: the worst relative L2 of any stage, in x noise in bfloat16, of the golden's RMS in float32;
behind them the gates it was asked, and their verdicts. What is refused, and what a gate does not judge, has its
sentence below the table.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from parity.api import compare_dumps, gate_device, open_golden, run_device
from parity.bundled import tiny
from parity.errors import ParityError
from parity.families import FAMILIES
from parity.golden.views import TrustedGolden
from parity.partial import scratch
from parity.producers import dump_golden

ENGINES, PRECISIONS = ("numpy", "numpy,tp=2", "xla", "nkipy"), ("bfloat16", "float32")
KS: tuple[tuple[int, ...], ...] = ((1,), (4,), (7,), (10,), (4, 0, 2))
"""One draft; four; DFlash's most; more than P-EAGLE's 8; one that changes."""
LENGTHS, BUDGET = (16, 6, 40, 23, 31), 10
"""Tokens of the prompts, the first one alone where there are no lanes; new tokens of each."""

Result = dict[str, Any]


def main() -> None:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", choices=ENGINES, help="Only these.")
    parser.add_argument("--family", action="append", choices=list(FAMILIES), help="Only these.")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="Only these.")
    parser.add_argument("-k", action="append", help="Only these, as 4 or 4,0,2.")
    parser.add_argument("--lanes", action="append", type=int, help="Sequences at once.")
    parser.add_argument("--sample", default="", help="How tokens are drawn, as `parity dump-golden` takes it.")
    parser.add_argument("--gate", action="append", default=[], help="Asked of cells of one lane, beside the stages.")
    parser.add_argument("--log", type=Path, help="JSON lines; what is there is not done again.")
    options = parser.parse_args()
    done = [] if not (options.log and options.log.exists()) else _read(options.log)
    ks = [k for k in KS if not options.k or _said(k) in options.k]
    asked = product(options.family or FAMILIES, ks)
    for family, k in asked:
        engines = options.engine or ENGINES
        if options.lanes:
            engines = [_with_lanes(*one) for one in product(engines, options.lanes)]
        wanted = list(product(engines, options.precision or PRECISIONS))
        case = family, _said(k), options.sample
        known = {_column(one) for one in done if _row(one) == case}
        count = len(LENGTHS) if options.lanes else 1
        left = [pair for pair in wanted if pair not in known]
        for result in _compared(family, k, count, left, options.sample, options.gate):
            done.append(result)
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(result) + "\n")
    print("\n".join(_table(done)))


def _with_lanes(engine: str, lanes: int) -> str:
    return f"{engine},lanes={lanes}" if lanes > 1 else engine


def _read(log: Path) -> list[Result]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def _said(k: Sequence[int]) -> str:
    return ",".join(map(str, k))


def _compared(
    family: str, k: Sequence[int], count: int, wanted: Sequence[tuple[str, str]], sample: str, gates: Sequence[str]
) -> Iterator[Result]:
    """One golden of so many prompts, each engine and precision on it."""
    if not wanted:
        return
    with scratch("families") as folder:
        ids = ([5 + 50 * number + 7 * i for i in range(length)] for number, length in enumerate(LENGTHS[:count]))
        prompts = ({"id": f"of-{len(one)}", "ids": one} for one in ids)
        (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
        drafter = tiny(FAMILIES[family].checkpoint)
        told = dict(family=family, k=_said(k), sample=sample)
        drawn = {"sample": sample} if sample else {}
        try:
            made = dump_golden(None, drafter, folder / "prompts.jsonl", k, BUDGET, out=folder / "golden", **drawn)
        except ParityError as error:
            yield from (told | dict(engine=e, precision=p, said=_plain(error, drafter)) for e, p in wanted)
            return
        golden = open_golden(made.folder, sampled=bool(sample))
        for engine, precision in wanted:
            found = _both(golden, engine, precision, folder)
            if gates and "lanes=" not in engine and "worst" in found:
                found |= _gated(golden, engine, precision, gates)
            yield told | dict(engine=engine, precision=precision) | found


def _gated(golden: TrustedGolden, engine: str, precision: str, gates: Sequence[str]) -> Result:
    """Verdicts of the gates, and every check that does not pass."""
    report = gate_device(golden, engine, precision, gates)
    checks = [(result.gate, check) for result in report.results for check in result.checks]
    said = [
        f"{gate}, {check.name}, {check.verdict}: {check.evidence}" for gate, check in checks if check.verdict != "pass"
    ]
    return {"gates": {result.gate: result.verdict for result in report.results}, "not passed": said}


def _both(golden: TrustedGolden, engine: str, precision: str, folder: Path) -> Result:
    worst: dict[str, float] = {}
    for mode in ("chained", "local"):
        try:
            out = folder / f"{engine}-{precision}-{mode}"
            run = run_device(golden, engine, mode, precision, out=out, free=False if mode == "chained" else None)
        except ParityError as error:
            return {"said": _plain(error, folder)}
        report = compare_dumps(golden, run)
        if report.verdict not in ("pass", "warn"):
            return {"said": f"{report.verdict}: {report.first}"}
        worst[mode] = max(stage.x["l2"] for stage in report.stages if stage.x.get("l2") is not None)
    return {"worst": worst}


def _plain(error: ParityError, folder: Path) -> str:
    return str(error).replace(str(tiny("target").parent) + "/", "").replace(str(folder) + "/", "")


def _table(results: Sequence[Result]) -> Iterator[str]:
    places = {engine: number for number, engine in enumerate(ENGINES)}
    columns = sorted(dict.fromkeys(map(_column, results)), key=lambda pair: places[pair[0].partition(",lanes")[0]])
    yield "| family | K | " + " | ".join(f"`{engine}` {precision}" for engine, precision in columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    sentences: list[str] = []
    for family, k, sample in dict.fromkeys(map(_row, results)):
        cells = {_column(one): one for one in results if _row(one) == (family, k, sample)}
        named = " | ".join((f"{family}, {sample}" if sample else family, k))
        yield f"| {named} | " + " | ".join(_cell(cells.get(column), sentences) for column in columns) + " |"
    yield from ("", *(f"{number}. {sentence}" for number, sentence in enumerate(sentences, 1)))


def _row(one: Result) -> tuple[str, str, str]:
    return one["family"], one["k"], one["sample"]


def _column(one: Result) -> tuple[str, str]:
    return one["engine"], one["precision"]


def _cell(one: Result | None, sentences: list[str]) -> str:
    if one is None:
        return ""
    if "said" in one:
        if one["said"] not in sentences:
            sentences.append(one["said"])
        return f"refused ({sentences.index(one['said']) + 1})"
    sentences += [said for said in one.get("not passed", ()) if said not in sentences]
    gates = [f"{gate} {verdict}" for gate, verdict in one.get("gates", {}).items()]
    return ", ".join([" / ".join(f"{value:.2g}" for value in one["worst"].values()), *gates])


if __name__ == "__main__":
    main()
