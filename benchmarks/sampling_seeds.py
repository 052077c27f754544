"""How often the sampling gate fails a clean device: both legal accept rules, one seed after the other.

    python benchmarks/sampling_seeds.py [--seeds 200] [--first 0] [--tokens 8] [--rounds 25] [--device numpy]

A pair cut to two layers each, P-EAGLE, bfloat16, two chat prompts. `--tokens` and `--rounds` are those of a rule and a
prompt; the gate's own are 24 and 300. Every seed that does not pass is printed with its checks. Exit code 1 where one
fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parity.api import gate_device, open_golden
from parity.gates.sampling import gate as sampling
from parity.producers import dump_golden
from tests.sample import cut
from tests.shallow import cut_pair

TINY = Path(__file__).resolve().parents[1] / "fixtures" / "tiny"


def main() -> None:
    """Ask seed after seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--device", default="numpy")
    asked = parser.parse_args()
    sampling.BUDGET, sampling.ROUNDS = asked.tokens, asked.rounds
    verdicts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        golden = open_golden(_golden(Path(scratch)))
        for seed in range(asked.first, asked.first + asked.seeds):
            report = gate_device(golden, asked.device, only=("sampling",), seed=seed)
            verdicts[report.verdict] += 1
            for check in (check for result in report.results for check in result.checks):
                if check.verdict not in ("pass", "not judged"):
                    print(f"seed {seed}: {check.verdict}: {check.name}: {check.evidence}", flush=True)
            print(f"\r{verdicts.total()} seeds", end="", file=sys.stderr, flush=True)
    print(
        f"\n{asked.device}: {verdicts.total()} seeds: " + ", ".join(f"{one} {count}" for one, count in verdicts.items())
    )
    raise SystemExit("fail" in verdicts)


def _golden(folder: Path) -> Path:
    lines = (TINY / "prompts" / "chat.jsonl").read_text().splitlines()[:2]
    prompts = folder / "prompts.jsonl"
    prompts.write_text("\n".join(cut(line, words=12) for line in lines))
    pair = cut_pair(TINY, folder)
    dump_golden(pair["target"], pair["drafter"], prompts, 4, 6, out=folder / "golden")
    return folder / "golden"


if __name__ == "__main__":
    main()
