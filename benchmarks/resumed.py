"""Kill a dump at random moments and let it go on, until it is whole: are the bytes those of an undisturbed one?

    python benchmarks/resumed.py [--kills 50] [--seed 1]

Five chat prompts of the tiny pair, weights in their files, two prompts together. Every kill is SIGKILL, after a time
drawn between none and that of the whole dump; a golden that gets done before its kill begins anew under another name.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
TINY = HOUSE / "fixtures" / "tiny"


def command(out: Path) -> list[str]:
    """The dump to be killed."""
    prompts = out.parent / "prompts.jsonl"
    prompts.write_text("".join((TINY / "prompts/chat.jsonl").read_text().splitlines(keepends=True)[:5]))
    asked = ("--prompts", prompts, "--max-new-tokens", 8, "--reference", "plain", "--memory", 0.01, "--batch", 2)
    return [sys.executable, "-m", "parity", "dump-golden", *map(str, asked), "--resume", "--out", str(out)]


def contents(folder: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    """Every file's bytes; of the manifest all but the time and its own digest."""
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(held.pop("manifest.json"))
    return held, {name: value for name, value in manifest.items() if name not in ("created", "digest")}


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw, kills, goldens, wrong, prompts = random.Random(asked.seed), 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        begun = time.monotonic()
        subprocess.run(command(Path(scratch, "undisturbed")), cwd=HOUSE, check=True, stdout=subprocess.DEVNULL)
        seconds, wanted = time.monotonic() - begun, contents(Path(scratch, "undisturbed"))
        while kills < asked.kills:
            out = Path(scratch, f"golden-{goldens}")
            process = subprocess.Popen(
                command(out), cwd=HOUSE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            try:
                _, said = process.communicate(timeout=draw.uniform(0, seconds))
            except subprocess.TimeoutExpired:
                process.kill()
                _, said = process.communicate()
                kills += 1
                failed = False
            else:
                failed = process.returncode != 0
            if failed or out.exists():  # the kill may come when all is done
                goldens += 1
                wrong += failed or contents(out) != wanted
            prompts += "are done already" in said
    print(f"{kills} kills, {prompts} times prompts were taken up, {goldens} goldens done, {wrong} of them differ")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
