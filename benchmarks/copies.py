"""How much of a clean run is the golden, or one of its floors, bit for bit.

    python benchmarks/copies.py --golden DIR RUN...

For each run the largest share of rows of any prompt's prefill or verify rounds, and what they are a copy of: what has
to stay below `parity.compare.evidence.SHARE`.
"""

import argparse
from pathlib import Path

from parity.compare.evidence import SHARE, Copies, Origin
from parity.compare.rows import stage_rows
from parity.golden.store import Dump
from parity.policy import read_policy


def largest(golden: Dump, run: Dump) -> tuple[float, Origin]:
    """The largest share, and where it is."""
    case = run.manifest.case
    copies, policy = Copies(golden, case.mode), read_policy(None, case.precision)
    for name in (name for name in run.manifest.stages if not golden.declared[name].stage.exact):
        copies.look(stage_rows(golden, run, golden.declared[name]), policy.row(name, case.mode))
    return max((copies.copied.get(origin, 0) / count, origin) for origin, count in copies.counted.items() if count)


def main() -> None:
    """One line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    chosen = parser.parse_args()
    for run in chosen.runs:
        share, (prompt, passes, source) = largest(Dump(chosen.golden), Dump(run))
        print(f"{run.name}: {share:.1%} of the rows of prompt {prompt}'s {passes} are {source}; {SHARE:.0%} is a copy")


if __name__ == "__main__":
    main()
