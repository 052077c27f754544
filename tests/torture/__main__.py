"""`python -m tests.torture`: attempts by class, counted; exit 1 when any count is not 0."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.foreground import restore_signals
from tests.torture.attempts import COUNTS, Attack, Attempt, Bad, judged
from tests.torture.bases import Bases
from tests.torture.child import Ended, run, warm
from tests.torture.classes import CLASSES

KEPT_EACH = 3
"""Folders kept of each kind of finding; every one is printed with its command all the same."""


def main() -> int:
    """Attack; the exit code."""
    restore_signals()
    options = _options()
    work = options.work.resolve()
    bases = Bases(work / "bases")
    warm(bases.small)
    attacks = [CLASSES[name](bases) for name in options.only or CLASSES]
    print(f"seed {options.seed}; findings are kept in {work / 'found'}", flush=True)
    total, begun = Counter(), time.monotonic()
    for number, attack in enumerate(attacks):
        until = None if options.minutes is None else begun + 60 * options.minutes * (number + 1) / len(attacks)
        total += _attack(attack, options, work, until)
    shutil.rmtree(work / f"now.{os.getpid()}", ignore_errors=True)
    print(f"{total['attempts']} attempts in {time.monotonic() - begun:.0f} s: " + _line(total))
    return int(any(total[count] for count in COUNTS))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.torture", description="Attack parity and count what it lets pass."
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(CLASSES), help="only this class; may be repeated")
    parser.add_argument("--attempts", type=int, help="attempts of each class; each systematically once by default")
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first attempt: repeats a finding with --attempts 1"
    )
    parser.add_argument("--minutes", type=float, help="end after so many, shared out among the classes")
    parser.add_argument("--slice", action="store_true", help="the short run: some of every class, drawn by the seed")
    parser.add_argument(
        "--work", type=Path, default=Path("build/torture"), help="where evidence is made and findings are kept"
    )
    return parser.parse_args()


def _attack(attack: Attack, options: argparse.Namespace, work: Path, until: float | None) -> Counter:
    """One class; its counts, printed."""
    if options.slice:
        numbers = sorted(Random(options.seed).sample(range(attack.count), min(attack.slice, attack.count)))
    else:
        numbers = range(options.first, options.first + (options.attempts or attack.count))
    counts, begun = Counter(), time.monotonic()
    for number in numbers:
        if until is not None and time.monotonic() > until:
            break
        attempt, ended, bad = one(attack, number, options.seed, work / f"now.{os.getpid()}")
        counts["attempts"] += 1
        counts[f"exit {ended.code}" if not attempt.ends else "ended"] += 1
        for what in {what for what, _ in bad}:
            counts[what] += 1
        if bad:
            _report(attack, number, options, attempt, ended, bad, work, counts)
    codes = ", ".join(f"{code} {count}" for code, count in sorted(counts.items()) if code.startswith(("exit", "ended")))
    print(
        f"{attack.name}: {counts['attempts']} attempts in {time.monotonic() - begun:.0f} s ({codes}): {_line(counts)}",
        flush=True,
    )
    return counts


def one(attack: Attack, number: int, seed: int, now: Path) -> tuple[Attempt, Ended, Bad]:
    """One attempt in a fresh folder."""
    shutil.rmtree(now, ignore_errors=True)
    for part in ("work", "outside", "tmp"):
        (now / part).mkdir(parents=True)
    (now / "outside" / "secret").write_text("not yours")
    attempt = attack.prepare(number, Random(f"{seed} {attack.name} {number}"), now)
    ended = run(attempt.arguments, now, attempt.seconds, attempt.process, attempt.before, attempt.piped)
    return attempt, ended, judged(attempt, ended)


def _report(
    attack: Attack, number: int, options, attempt: Attempt, ended: Ended, bad: Bad, work: Path, counts: Counter
) -> None:
    """Say what was found and how to repeat it; keep the folder of the first ones of a kind."""
    said = next((line for line in reversed((ended.err + ended.out).splitlines()) if line.strip()), "")
    print(f"{attack.name} {number}: {attempt.name!a}: " + "; ".join(f"{what} ({seen})" for what, seen in bad))
    print(f"    {ascii(said)[:160]}")
    print(
        f"    repeat: python -m tests.torture --only {attack.name} --seed {options.seed} --first {number} --attempts 1",
        flush=True,
    )
    counts["kept " + bad[0][0]] += 1
    if counts["kept " + bad[0][0]] <= KEPT_EACH:
        kept = work / "found" / f"{attack.name}-{options.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(work / f"now.{os.getpid()}", kept)


def _line(counts: Counter) -> str:
    return ", ".join(f"{what} {counts[what]}" for what in COUNTS)


if __name__ == "__main__":
    sys.exit(main())
