"""Coverage-guided fuzzing: `python -m tests.fuzz TARGET [SECONDS]`; atheris is optional (`pip install '.[fuzz]'`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["parity", "tomllib"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS, refused_or_read

EDITED = ("manifest", "results")
MEMORY = 2048
"""MiB: what no foreign file may take."""


def one_value(whole: bytes, fuzzed: atheris.FuzzedDataProvider) -> bytes:
    """JSON with one value anywhere replaced by another one, its own or made up."""
    node = raw = json.loads(whole)
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = keys[fuzzed.ConsumeIntInRange(0, len(keys) - 1)]
        if not (isinstance(node[key], dict | list) and node[key] and fuzzed.ConsumeIntInRange(0, 4)):
            break
        node = node[key]
    made = (None, fuzzed.ConsumeInt(8), fuzzed.ConsumeFloat(), [], [fuzzed.ConsumeInt(2)], {}, [node[key]] * 2)
    choice = fuzzed.ConsumeIntInRange(0, len(made))
    node[key] = made[choice] if choice < len(made) else fuzzed.ConsumeUnicode(40)
    return json.dumps(raw).encode()


def main() -> None:
    """Fuzz one target; what it finds lies in build/fuzz/TARGET, what it tries in build/fuzz/corpus/TARGET."""
    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "120"
    found = Path("build/fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    corpus = Path("build/fuzz/corpus") / name  # what a run adds, the next one begins with
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds()[name]):
        (corpus / str(number)).write_bytes(seed)
    limits = [
        f"-max_total_time={seconds}",
        "-timeout=20",
        f"-rss_limit_mb={MEMORY}",
        f"-artifact_prefix={found}/",
        "-max_len=65536",
    ]

    def once(data: bytes) -> None:
        """Bytes as they are; of a JSON format every second time as an edit of one value of the seed."""
        edit = name in EDITED and len(data) > 2 and data[0] % 2
        refused_or_read(name, one_value(seeds()[name][0], atheris.FuzzedDataProvider(data[1:])) if edit else data)

    atheris.Setup([name, *limits, "-print_final_stats=1", str(corpus)], once)
    atheris.Fuzz()


if __name__ == "__main__":
    assert len(sys.argv) > 1 and sys.argv[1] in TARGETS, f"one of {', '.join(TARGETS)}"
    main()
