"""How fast a pair is compared: against summing the same arrays, and against other tools.

    python benchmarks/compare.py [--pairs 32] [--peer-pairs 2] [--repeats 3] [--ulps]

Writes `--pairs` pairs of [2048, 4096] in float32 and in bfloat16 as safetensors files to a temporary
folder (12 bytes an element and pair: 3.2 GB at 32 pairs), and measures, alternating in one process:

- sum: the rate at which the same memory-mapped bytes are summed, as float32, by `numpy.sum` on as many
  threads as we use; each array freshly mapped, like ours;
- ours: `parity.metrics.measure` with every metric that a comparison reads (`--ulps`: and ULPs, which only a policy row
  asks for), from fresh memory maps, in a process of its own that also reports its peak resident memory;
- every installed peer on its own file format, on `--peer-pairs` of the same pairs (they are slow).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parity.metrics import measure
from parity.metrics.stream import default_threads

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
GOALS = {"float32": 0.7, "bfloat16": 0.5}
SHAPE = (2048, 4096)
NOISE = 1e-2
LIMIT = 120.0
"""Seconds a peer may take for its pairs: msprobe's worker processes are known to hang on bfloat16."""


def write(folder: Path, pairs: int) -> None:
    """Golden and device shards `{dtype}-{number}-{side}.safetensors`, one tensor `x` each."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    for number in range(pairs):
        golden = random.standard_normal(SHAPE, dtype=np.float32)
        device = golden + np.float32(NOISE) * random.standard_normal(SHAPE, dtype=np.float32)
        for name, dtype in DTYPES.items():
            for side, values in (("golden", golden), ("device", device)):
                save_file({"x": values.astype(dtype)}, folder / f"{name}-{number:02d}-{side}.safetensors")


def mapped(path: Path) -> np.memmap:
    """The tensor `x` of a shard, memory-mapped."""
    with path.open("rb") as shard:
        length = int.from_bytes(shard.read(8), "little")
        entry = json.loads(shard.read(length))["x"]
    dtype = {"F32": DTYPES["float32"], "BF16": DTYPES["bfloat16"]}[entry["dtype"]]
    return np.memmap(path, dtype, "r", 8 + length + entry["data_offsets"][0], tuple(entry["shape"]))


def sides(folder: Path, dtype: str) -> Iterator[tuple[Path, Path]]:
    """Golden and device shard of every pair."""
    for golden in sorted(folder.glob(f"{dtype}-*-golden.safetensors")):
        yield golden, golden.with_name(golden.name.replace("golden", "device"))


def sum_all(folder: Path, dtype: str, pool: ThreadPoolExecutor, threads: int) -> None:
    """Sum both sides of every pair, each split over the threads."""
    for pair in sides(folder, dtype):
        for path in pair:
            parts = np.array_split(mapped(path).view(np.float32), threads)
            list(pool.map(np.sum, parts))


def measure_all(folder: Path, dtype: str, ulps: bool) -> None:
    """The metrics of every pair."""
    for golden, device in sides(folder, dtype):
        measure(mapped(golden), mapped(device), ulps=ulps)


def seconds(work: Callable[[], None]) -> tuple[float, float]:
    """Time of one call by the wall's clock and by the processor's, of all threads."""
    start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def ours(folder: Path, repeats: int, ulps: bool) -> dict[str, Any]:
    """Peak memory first, in this fresh process; then the times of both rates, interleaved."""
    measure_all(folder, "float32", ulps)
    measure_all(folder, "bfloat16", ulps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    threads = default_threads()
    pool = ThreadPoolExecutor(threads)
    times: dict[str, dict[str, list[tuple[float, float]]]] = {name: {"sum": [], "measure": []} for name in DTYPES}
    for _ in range(repeats):
        for name, taken in times.items():
            taken["sum"].append(seconds(partial(sum_all, folder, name, pool, threads)))
            taken["measure"].append(seconds(partial(measure_all, folder, name, ulps)))
    return {"peak_mib": peak, "threads": threads, "times": times}


def gigabytes(folder: Path, dtype: str) -> float:
    """Size of both sides of all pairs."""
    return sum(2 * np.prod(SHAPE) * DTYPES[dtype].itemsize for _ in sides(folder, dtype)) / 1e9


def worker(*arguments: str, limit: float | None = None) -> dict[str, Any]:
    """The last line a script prints, as JSON, from a process of its own; ended with its children at `limit`."""
    command = [sys.executable, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes)
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"error": f"did not finish in {limit:.0f} s"}
    if process.returncode:
        return {"error": f"failed: {err.strip().splitlines()[-1] if err.strip() else process.returncode}"}
    return json.loads(out.splitlines()[-1])


def report_ours(folder: Path, timed: dict[str, Any]) -> dict[str, float]:
    """Print our rates beside the sum's; returns ours in GB/s by dtype."""
    rates, total = {}, {"sum": 0.0, "measure": 0.0}
    for name, times in timed["times"].items():
        size = gigabytes(folder, name)
        best = {what: min(wall for wall, _ in taken) for what, taken in times.items()}
        for what, value in best.items():
            total[what] += value
        rates[name] = size / best["measure"]
        pairs = zip(times["sum"], times["measure"], strict=True)
        wall, processor = zip(*((s[0] / m[0], s[1] / m[1]) for s, m in pairs), strict=True)
        print(
            f"{name:9s} sum {size / best['sum']:6.2f} GB/s   measure {rates[name]:6.2f} GB/s   "
            f"of the sum rate (goal {GOALS[name]}): best {best['sum'] / best['measure']:.2f}, "
            f"median {median(wall):.2f}, by processor time {median(processor):.2f}"
        )
    print(f"both      {total['sum'] / total['measure']:.2f} of the sum rate, {timed['threads']} threads")
    print(f"peak resident memory {timed['peak_mib']:.0f} MiB (goal < 300)")
    return rates


def report_peers(folder: Path, rates: dict[str, float], pairs: int) -> None:
    """Print every peer's rate, and ours over the fastest."""
    script = str(Path(__file__).with_name("peers.py"))
    fastest: dict[str, tuple[float, str]] = {}
    for peer in ("torch", "polygraphy", "msprobe", "sglang"):
        for dtype in DTYPES:
            timed = worker(script, peer, str(folder), dtype, str(pairs), limit=LIMIT)
            if "error" in timed:
                print(f"{peer:11s} {dtype:9s} {timed['error']}")
                continue
            rate = timed["bytes"] / timed["seconds"] / 1e9
            print(f"{peer:11s} {dtype:9s} {rate:6.3f} GB/s   ours is {rates[dtype] / rate:.1f}x")
            fastest[dtype] = max(fastest.get(dtype, (0.0, "")), (rate, peer))
    for dtype, (rate, peer) in fastest.items():
        print(f"{dtype:9s} {rates[dtype] / rate:.1f} times the fastest installed peer, {peer} (goal 20)")


def main() -> None:
    """Write the pairs, run every worker, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--peer-pairs", type=int, default=2, help="0 leaves the peers out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ulps", action="store_true", help="count ULPs as well")
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.ours, options.repeats, options.ulps)))
        return
    with tempfile.TemporaryDirectory(prefix="parity-compare-") as name:
        folder = Path(name)
        write(folder, options.pairs)
        counted = ["--ulps"] if options.ulps else []
        timed = worker(__file__, "--ours", name, "--repeats", str(options.repeats), *counted)
        if "error" in timed:
            raise SystemExit(timed["error"])
        rates = report_ours(folder, timed)
        if options.peer_pairs:
            report_peers(folder, rates, options.peer_pairs)


if __name__ == "__main__":
    main()
