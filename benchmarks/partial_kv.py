"""Partial against full KV of an EAGLE-3 drafter at long positions: acceptance, bytes that its attention reads, time.

    python benchmarks/partial_kv.py [--lengths 1024 4096 16384 32768] [--sizes 2+8+4x16] [--rope trained|published]

Running text with a chat prompt at its end is prefilled in passes of 256 rows on the numpy engine, float32, and both
drafters continue behind the same prefill: one layer's own keys do not depend on what it attends to, so that one cache
serves both. The weights are the tiny pair's, its context is raised. With `--rope published` the target's schedule is
gpt-oss's own (YaRN: base 150,000, factor 32, original 4,096) and the drafter's base 500,000, under which the tiny
weights were not trained: they accept next to nothing.

Asserted at every length: the two emit the same tokens, no cached row is NaN or infinite, the caches' lengths are those
of the tokens, and the process takes no more memory behind the first quarter of a generation than in it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parity import device
from parity.device.pipeline import Pipeline
from parity.device.recorder import Recorder
from parity.partial_kv import PartialKV
from parity.references.prompts import read_prompts

TINY = Path(__file__).resolve().parents[1] / "fixtures" / "tiny"
K, ROWS = 4, 256
YARN = dict(
    rope_type="yarn",
    rope_theta=150000.0,
    factor=32.0,
    beta_fast=32.0,
    beta_slow=1.0,
    original_max_position_embeddings=4096,
    truncate=False,
)
COLUMNS = (
    *("positions", "rounds", "AL, full", "AL, partial"),
    *("KiB read, full", "partial", "ratio", "ms a draft, full", "partial"),
)
GROWTH = 2**24
"""Bytes by which a process may grow in a generation, peak over peak: a copy of caches comes and goes with rounds."""


@dataclass
class Measured:
    """One drafter behind one prefill: what its rounds emitted, and the seconds of each draft."""

    tokens: list[int]
    lengths: list[int]
    seconds: list[float]

    @property
    def acceptance(self) -> tuple[float, float]:
        """Mean acceptance length, and the half-width of its 95 % interval over rounds."""
        lengths = np.array(self.lengths, np.float64)
        return float(lengths.mean()), float(1.96 * lengths.std(ddof=1) / np.sqrt(len(lengths)))


def long_pair(folder: Path, positions: int, published: bool) -> tuple[Path, Path]:
    """The tiny target and its EAGLE-3 drafter with room for so many positions."""
    made = []
    for name in ("target", "eagle3"):
        to = folder / name
        shutil.copytree(TINY / name, to)
        config = json.loads((to / "config.json").read_text()) | {"max_position_embeddings": positions}
        if published:
            config |= {"rope_parameters": YARN} if name == "target" else {"rope_theta": 500000.0}
        (to / "config.json").write_text(json.dumps(config))
        made.append(to)
    return made[0], made[1]


def long_prompt(count: int, number: int) -> list[int]:
    """So many tokens: Python's own documentation, for each number another part of it, and a chat prompt at the end."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer

    words = Tokenizer.from_file(str(TINY / "target" / "tokenizer.json"))
    ids = words.encode("\n".join(topics.values()), add_special_tokens=False).ids
    asked = read_prompts(TINY / "prompts" / "chat.jsonl", TINY / "target", 2**31)[number][1]
    start, left = number * len(ids) // 24, count - len(asked)
    return [*(ids * -(-(start + left) // len(ids)))[start : start + left], *asked]


def twin(made: Pipeline, partial: PartialKV | None) -> Pipeline:
    """The same sequence once more, its drafter attending to these pages: passes write behind the lengths alone."""
    other = copy(made)
    other.target, other.drafter = copy(made.target), copy(made.drafter)
    other.drafter.config = replace(made.drafter.config, partial=partial)
    if partial is None:
        other.drafter.summaries = []
    return other


def go_on(made: Pipeline, prompt: int) -> Measured:
    """Speculate to the end of the budget behind a prefill of so many tokens."""
    found, grown = Measured([], [], []), []
    while not made.finished:
        start = time.perf_counter()
        drafts = made.draft()
        found.seconds.append(time.perf_counter() - start)
        emitted = made.commit(drafts, made.verify(drafts))
        found.tokens += emitted.tolist()
        found.lengths.append(len(emitted))
        grown.append(resident())
        assert made.target.length == prompt + len(found.tokens), "the target's cache is not as long as the text"
    quarter = len(grown) // 4
    assert max(grown[quarter:]) - max(grown[:quarter]) <= GROWTH, f"memory grows: {grown}"
    for model in (made.target, made.drafter):
        for one in (one for pair in model.caches for one in pair):
            assert np.isfinite(made.target.engine.host(one[:, : model.length])).all(), "a cached row is not finite"
    return found


def resident() -> int:
    """Bytes of memory that the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def read_bytes(made: Pipeline, sizes: PartialKV | None, rows: int) -> int:
    """Bytes in bfloat16 that the attention of one drafter row reads behind so many rows: keys, values, summaries."""
    config = made.drafter.config
    row = 2 * config.layers * config.attention.kv_heads * config.attention.head_dim
    if sizes is None:
        return 2 * rows * row
    return 2 * row * (min(rows, sizes.rows) + rows // sizes.page)


def measure(length: int, number: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both drafters behind `length` tokens of the text of this number."""
    sizes = PartialKV.parse(arguments.sizes)
    with tempfile.TemporaryDirectory() as folder:
        room = length + arguments.tokens + K + 1
        pair = long_pair(Path(folder), room, arguments.rope == "published")
        made = device.load(*pair, K, "float32", partial_kv=arguments.sizes)
    made.target.config = replace(made.target.config, eos=())
    made.prefill_rows, begun = ROWS, time.perf_counter()
    made.prefill(long_prompt(length, number), arguments.tokens)
    prefill = time.perf_counter() - begun
    whole, partial = (go_on(twin(made, kept), length) for kept in (None, sizes))
    assert whole.tokens == partial.tokens, "partial KV changed the text"
    return {
        "positions": length,
        "text": number,
        "prefill_seconds": prefill,
        "full": {"lengths": whole.lengths, "seconds": whole.seconds, "bytes": read_bytes(made, None, length)},
        "partial": {"lengths": partial.lengths, "seconds": partial.seconds, "bytes": read_bytes(made, sizes, length)},
    }


def drafter_alone(length: int, arguments: argparse.Namespace) -> str:
    """The drafter with partial KV over one pass' taps, again and again up to `length`: a line of what was held."""
    sizes = PartialKV.parse(arguments.sizes)
    assert sizes is not None
    with tempfile.TemporaryDirectory() as folder:
        pair = long_pair(Path(folder), length + 2 * K, arguments.rope == "published")
        made = device.load(*pair, K, "float32", partial_kv=arguments.sizes)
    made.prefill(long_prompt(ROWS, 0), 2)
    taps, drafter, unwatched = made._taps[0], made.drafter, Recorder(None, made.target.engine)
    drafter.clear()
    grown, seconds, ids = [], [], np.array(long_prompt(ROWS, 1))
    for drafter.length in range(0, length - ROWS + 1, ROWS):
        drafter.prefill(taps, ids, ROWS, unwatched)
        start = time.perf_counter()
        drafts = drafter.draft(taps, 0, ids[-1:], K, unwatched)
        seconds.append(time.perf_counter() - start)
        grown.append(resident())
        assert len(drafts) == K and drafts.min() >= 0, "a draft is no token"
    for one in (one for pair in (*drafter.caches, *drafter.summaries) for one in pair):
        assert np.isfinite(made.target.engine.host(one[:, :length])).all(), "a cached row or summary is not finite"
    quarter = len(grown) // 4
    early, late = (1000 * float(np.median(part)) for part in (seconds[:quarter], seconds[-quarter:]))
    return (
        f"drafter alone to {length:,} positions: every row and summary finite, {early:.1f} ms a draft in the first "
        f"quarter, {late:.1f} in the last; memory grows by {(grown[-1] - grown[0]) / 2**20:.1f} MiB"
    )


def line(found: list[dict[str, Any]]) -> str:
    """One length's row of the table."""
    sides = []
    for side in ("full", "partial"):
        lengths = [one for each in found for one in each[side]["lengths"]]
        seconds = [one for each in found for one in each[side]["seconds"]]
        mean, half = Measured([], lengths, []).acceptance
        sides.append((f"{mean:.2f} ± {half:.2f}", found[0][side]["bytes"] / 1024, 1000 * float(np.median(seconds))))
    (full, kib, ms), (partial, kept, less) = sides
    rounds = sum(len(each["full"]["lengths"]) for each in found)
    return (
        f"| {found[0]['positions']:,} | {rounds} | {full} | {partial} | {kib:,.0f} | {kept:,.0f} | {kib / kept:.1f} | "
        f"{ms:.1f} | {less:.1f} |"
    )


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16384, 32768])
    parser.add_argument("--sizes", default="2+8+4x16", help="sink + retrieved + window pages x rows of a page")
    parser.add_argument("--rope", choices=["trained", "published"], default="trained")
    parser.add_argument("--tokens", type=int, default=128, help="generated behind each prefill")
    parser.add_argument(
        "--texts", type=int, default=1, help="prefills of each length, each of another part of the text"
    )
    parser.add_argument("--json", type=Path, help="write every round to this file")
    parser.add_argument("--alone", type=int, help="the drafter alone, to so many positions, and nothing else")
    arguments = parser.parse_args()
    if arguments.alone:
        return print(drafter_alone(arguments.alone, arguments))
    print(f"| {' | '.join(COLUMNS)} |")
    print("|---" * len(COLUMNS) + "|", flush=True)
    every = []
    for length in arguments.lengths:
        found = [measure(length, number, arguments) for number in range(arguments.texts)]
        every += found
        print(line(found), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(every))


if __name__ == "__main__":
    main()
