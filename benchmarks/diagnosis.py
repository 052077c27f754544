"""How often `parity diagnose` names the planted fault first, and how long it takes.

    python benchmarks/diagnosis.py [ID ...] [--family eagle-3] [--golden DIR] [--markdown FILE] [--log FILE]
        [--show VIEW] [--limit SECONDS] [--every N]
        [--partial-kv SIZES]

Plants every fault of the device's catalogue that a family of drafters can have in turn, but for those of partial KV
(`--partial-kv` plants these alone) and for those of batches, lifecycles and sampling, which a diagnosis tells by kind
alone (`KINDS`), and diagnoses the device as the command does, over a golden of two chat prompts, 12 new tokens each.
Goals: at least 95 % named first (90 % of other families than P-EAGLE), a median below 20 s on two cores. A log that is
there already is taken up: faults in it are not run again. `--show` diagnoses the device through a view, as
`numpy,show=layer-kernels` does; `--limit` is the command's, in seconds of the processor: what else runs on the machine
takes nothing from a search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

HOUSE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HOUSE))

from parity.api import diagnose_device, open_golden  # noqa: E402
from parity.device.faults import CATALOGUE  # noqa: E402
from parity.diagnose import clock  # noqa: E402
from parity.families import FAMILIES  # noqa: E402
from parity.fault_choice import choose_faults, small_golden  # noqa: E402

NAMED = json.loads(Path(__file__).with_name("diagnosis.json").read_text())
"""Fault id to the hypotheses that say the same thing, where the ids differ; `part: WORDS` is a part of the computation
that says it, where nothing is named."""


def diagnosed(golden, fault: str, show: str = "", limit: float | None = None) -> dict:
    """What a diagnosis of one planted fault says, and the seconds it took."""
    start, processor = time.perf_counter(), time.process_time()
    name = f"parity.device.faults:{fault.replace('-', '_')}" + (f",show={show}" if show else "")
    found = diagnose_device(golden, name, CATALOGUE[fault].precision, limit=limit)
    said = answered_by(found)
    return said | {
        "fault": fault,
        "signature": getattr(found, "signature", ()),
        "named": is_named(fault, said),
        "seconds": round(time.perf_counter() - start, 1),
        "processor": round(time.process_time() - processor, 1),
    }


def answered_by(found) -> dict:
    """Answers as (id, what it says), what explains a dependence on another sequence behind it; the parts named by
    stage, and the stage that stays unexplained."""
    if isinstance(found, list):
        answers = [(name, each.says) for each in found for name in (each.id, *each.of)]
        return {"answers": answers, "components": [], "unexplained": ""}
    if not found:
        return {"answers": [], "components": [], "unexplained": ""}
    return {
        "answers": [(cause.hypothesis, cause.says) for cause in found.causes],
        "components": [(stage, str(part)) for stage, part in found.components],
        "unexplained": found.unexplained.stage if found.unexplained else "",
    }


def is_named(fault: str, said: dict) -> bool:
    """Whether the first answer names a fault; where there is none, whether the first part does."""
    if said["answers"]:
        return says_the_same(fault, said["answers"][0][0])
    return names_by_part(fault, said["components"])


def names_by_part(fault: str, parts: list[tuple[str, str]]) -> bool:
    """Whether the first part says what a fault is, in the words that are listed for it."""
    first = parts[0][1] if parts else ""
    words = (one.removeprefix("part: ") for one in NAMED.get(fault, ()) if one.startswith("part: "))
    return any(each in first for each in words)


def says_the_same(fault: str, hypothesis: str) -> bool:
    """Whether a hypothesis names a fault; `-drafter` only says in which model."""
    hypothesis = hypothesis.removesuffix("-drafter")
    return hypothesis == fault or hypothesis in NAMED.get(fault, ())


NAMES = {
    "p-eagle": "P-EAGLE",
    "eagle-3": "EAGLE-3",
    "draft-model": "a draft model",
    "n-gram": "prompt lookup",
    "dflash": "DFlash",
}
UNREAD = "a check of a gate fails, and no rule says what it means"
KINDS = ("batch", "lifecycle", "sampling")
"""Gates whose faults are told as what they depend on, who sits beside a sequence or what it continues from."""
PAGES = {"p-eagle": "diagnosed", "eagle-3": "diagnosed-eagle3"}


def command(family: str, limit: float | None = None) -> str:
    """What writes a family's page."""
    option = "" if family == "p-eagle" else f" --family {family}"
    option += f" --limit {limit:g}" if limit else ""
    return f"python benchmarks/diagnosis.py{option} --markdown docs/{PAGES.get(family, f'diagnosed-{family}')}.md"


def page(results: list[dict], family: str, limit: float | None) -> str:
    """A family's page: docs/diagnosed.md, docs/diagnosed-eagle3.md, …"""
    lines = [
        f"# What the diagnosis says of every planted fault: {NAMES[family]}",
        "",
        f"Written by `{command(family, limit)}`: how it is measured and judged stands there.",
        "",
        f"{sum(one['named'] for one in results)} of {len(results)} are named first.",
        "",
        "| planted | answer | named first | processor s |",
        "|---|---|---|---|",
    ]
    for one in results:
        parts = [f"{stage}: {part}" for stage, part in one["components"][:1]]
        said = "; ".join([says or UNREAD for _, says in one["answers"]] or parts) or "nothing fits"
        said += f"; {one['unexplained']} stays unexplained" if one["unexplained"] and one["answers"] else ""
        named = "yes" if one["named"] else "no"
        lines.append(f"| {one['fault']} | {said.replace('|', '/')} | {named} | {one['processor']:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Diagnose, print a line each, then the rate and the median."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("faults", nargs="*", metavar="ID")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="p-eagle")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--show", default="")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="of each search, of one processor")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every Nth fault only")
    parser.add_argument("--partial-kv", default="", metavar="S+R+WxP", help="plant the faults of partial KV")
    options = parser.parse_args()
    clock.monotonic = time.process_time
    results = (
        [json.loads(line) for line in options.log.read_text().splitlines()]
        if options.log and options.log.exists()
        else []
    )
    results = [one | {"named": is_named(one["fault"], one)} for one in results]
    done = {one["fault"] for one in results}
    with TemporaryDirectory(prefix="parity-diagnosis-") as folder:
        asked = {"family": options.family, "partial_kv": options.partial_kv}
        golden = open_golden(options.golden) if options.golden else small_golden(Path(folder), **asked)
        planted = [one.id for one in choose_faults(CATALOGUE, (), **asked) if one.gate not in KINDS]
        for fault in options.faults or planted[:: options.every]:
            if fault in done:
                continue
            results.append(diagnosed(golden, fault, options.show, options.limit))
            one = results[-1]
            print(
                f"{fault:34s} {'named' if one['named'] else 'NOT':6s}{one['seconds']:6.1f} s ({one['processor']:.1f}) ",
                one["answers"][:3],
                one["unexplained"],
                flush=True,
            )
            if options.log:
                with options.log.open("a") as log:
                    log.write(json.dumps(one, default=str) + "\n")
    named = sum(one["named"] for one in results)
    wall, processor = (statistics.median(one[clock] for one in results) for clock in ("seconds", "processor"))
    print(
        f"{named} of {len(results)} named first ({named / len(results):.1%}, goal 95 %); "
        f"median {wall:.1f} s (goal 20), {processor:.1f} s of one processor"
    )
    if options.markdown:
        order = list(CATALOGUE)
        options.markdown.write_text(
            page(sorted(results, key=lambda one: order.index(one["fault"])), options.family, options.limit)
        )


if __name__ == "__main__":
    main()
