"""Kill a dump at random moments and let it go on, until it is whole: are the bytes those of an undisturbed one?

    python benchmarks/resumed.py [--kills 50] [--ending 10] [--seed 1]

Five chat prompts of the tiny pair, weights in their files, two prompts together. Every kill is SIGKILL, after a time
drawn between none and that of the whole dump; the last of them (`--ending`) come after the last prompt is kept, between
none and the time that the dump takes from there to the whole golden. A golden that gets done before its kill begins
anew under another name, and one that is under way after the last kill is ended. What each kill left behind is counted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
TINY = HOUSE / "fixtures" / "tiny"
PROMPTS = 5
KEPT = "all prompts kept, no golden"


def command(out: Path) -> list[str]:
    """The dump to be killed."""
    prompts = out.parent / "prompts.jsonl"
    prompts.write_text("".join((TINY / "prompts/chat.jsonl").read_text().splitlines(keepends=True)[:PROMPTS]))
    asked = ("--prompts", prompts, "--max-new-tokens", 8, "--reference", "plain", "--memory", 0.01, "--batch", 2)
    return [sys.executable, "-m", "parity", "dump-golden", *map(str, asked), "--resume", "--out", str(out)]


def contents(folder: Path) -> tuple[dict[str, bytes], dict[str, object]]:
    """Every file's bytes; of the manifest all but the time and its own digest."""
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    manifest = json.loads(held.pop("manifest.json"))
    return held, {name: value for name, value in manifest.items() if name not in ("created", "digest")}


def phase(out: Path) -> str:
    """What a dump that was killed left behind."""
    kept = len(list(out.with_name(f"{out.name}.parts").glob("p*.json")))
    if out.exists():
        return "the golden whole"
    return ("no prompt kept", "some prompts kept", KEPT)[(kept > 0) + (kept == PROMPTS)]


def killed(out: Path, seconds: float | None, ending: bool) -> tuple[bool, str, int]:
    """Start the dump and kill it after so long, or so long after its last prompt is kept, or never: whether it was
    killed, what it said, its exit code."""
    process = subprocess.Popen(command(out), cwd=HOUSE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    last = out.with_name(f"{out.name}.parts") / f"p{PROMPTS - 1:03d}.json"
    while ending and seconds is not None and process.poll() is None and not last.exists() and not out.exists():
        time.sleep(0.0005)
    try:
        _, said = process.communicate(timeout=seconds)
        return False, said, process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        return True, process.communicate()[1], 0


def undisturbed(out: Path) -> tuple[float, float]:
    """Dump it; seconds of all of it, and from the last prompt that is kept to the whole golden."""
    begun = time.monotonic()
    process = subprocess.Popen(command(out), cwd=HOUSE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    last, moments = out.with_name(f"{out.name}.parts") / f"p{PROMPTS - 1:03d}.json", dict[Path, float]()
    while process.poll() is None:
        moments |= {one: time.monotonic() for one in (last, out) if one not in moments and one.exists()}
        time.sleep(0.0005)
    if process.returncode:
        raise SystemExit(f"the undisturbed dump ended with {process.returncode}")
    return time.monotonic() - begun, moments[out] - moments[last]


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--ending", type=int, default=10, help="Of these, how many come after the last prompt is kept.")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    draw, goldens, wrong, prompts, layers = random.Random(asked.seed), 0, 0, 0, 0
    left: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        seconds, ending = undisturbed(Path(scratch, "undisturbed"))
        wanted = contents(Path(scratch, "undisturbed"))
        while left.total() < asked.kills or Path(scratch, f"golden-{goldens}.parts").exists():
            out, late = Path(scratch, f"golden-{goldens}"), left.total() >= asked.kills - asked.ending
            spared = late and (left.total() == asked.kills or phase(out) == KEPT)
            moment = draw.uniform(0, ending if late else seconds)
            was_killed, said, code = killed(out, None if spared else moment, late)
            prompts += "are done already" in said
            layers += "are recorded already" in said
            if was_killed:
                left[phase(out)] += 1
            if code or out.exists():  # the kill may come when all is done
                goldens += 1
                wrong += code != 0 or contents(out) != wanted
            print(f"\r{left.total()} kills, {goldens} goldens, {wrong} differ", end="", file=sys.stderr, flush=True)
    print(
        f"\n{left.total()} kills, {prompts} times prompts were taken up and {layers} times layers of those under way, "
        f"{goldens} goldens done, {wrong} of them differ"
    )
    print("left behind: " + ", ".join(f"{name} {count}" for name, count in left.most_common()))
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
