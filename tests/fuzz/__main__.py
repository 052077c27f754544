"""Coverage-guided fuzzing: `python -m tests.fuzz TARGET [SECONDS]`; atheris is optional (`pip install '.[fuzz]'`)."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp

import atheris

with atheris.instrument_imports(include=["parity", "tomllib"]):
    from tests.fuzz.seeds import seeds
    from tests.fuzz.targets import TARGETS, refused_or_read

MEMORY = 2048
"""MiB: what no foreign file may take."""


def main() -> None:
    """Fuzz one target; what it finds lies in build/fuzz/TARGET."""
    name, seconds = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "120"
    found = Path("build/fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    corpus = Path(mkdtemp(prefix=f"parity-corpus-{name}-"))
    for number, seed in enumerate(seeds()[name]):
        (corpus / str(number)).write_bytes(seed)
    limits = [f"-max_total_time={seconds}", "-timeout=20", f"-rss_limit_mb={MEMORY}", f"-artifact_prefix={found}/", "-max_len=65536"]
    atheris.Setup([name, *limits, "-print_final_stats=1", str(corpus)], lambda data: refused_or_read(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    assert len(sys.argv) > 1 and sys.argv[1] in TARGETS, f"one of {', '.join(TARGETS)}"
    main()
