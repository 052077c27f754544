"""One peer compares the benchmark's pairs, in its own file format; prints seconds and bytes as JSON.

    python benchmarks/peers.py PEER FOLDER DTYPE PAIRS

Conversion to the peer's format and its import are not timed; reading that format and comparing are. Each
is asked for its usual check, with tolerances that pass, so that none of them stops early or prints details.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import MagicMock

MODULES = {"torch": "torch", "polygraphy": "polygraphy", "msprobe": "msprobe", "sglang": "sglang"}
Work = Callable[[], object]


def tensors(folder: Path, dtype: str, pairs: int, side: str) -> dict:
    """Name -> torch tensor of one side."""
    from safetensors.torch import load_file

    paths = sorted(folder.glob(f"{dtype}-*-{side}.safetensors"))[:pairs]
    return {f"x{number:02d}": load_file(path)["x"] for number, path in enumerate(paths)}


def torch(golden: dict, device: dict, work: Path) -> Work:
    """`torch.testing.assert_close` on memory-mapped torch files."""
    import torch as t

    t.save(golden, work / "golden.pt")
    t.save(device, work / "device.pt")

    def compare() -> None:
        sides = [t.load(work / f"{side}.pt", mmap=True) for side in ("golden", "device")]
        for name in sides[0]:
            t.testing.assert_close(sides[1][name], sides[0][name], rtol=1.0, atol=1.0)

    return compare


def polygraphy(golden: dict, device: dict, work: Path) -> Work:
    """`Comparator.compare_accuracy` on saved `RunResults`; bfloat16 is not one of its dtypes."""
    from polygraphy.comparator import Comparator, RunResults, SimpleCompareFunc

    for side, values in (("golden", golden), ("device", device)):
        results = RunResults()
        results.add([{name: value.numpy() for name, value in values.items()}], runner_name=side)
        results.save(str(work / f"{side}.json"))

    def compare() -> None:
        results = RunResults.load(str(work / "golden.json"))
        results.extend(RunResults.load(str(work / "device.json")))
        passed = Comparator.compare_accuracy(results, compare_func=SimpleCompareFunc(atol=1.0, rtol=1.0))
        assert bool(passed)

    return compare


def msprobe(golden: dict, device: dict, work: Path) -> Work:
    """`msprobe compare` on two tensor dumps."""
    import torch as t

    for side, values in (("golden", golden), ("device", device)):
        data = work / side / "dump_tensor_data"
        data.mkdir(parents=True)
        rows = {}
        for name, value in values.items():
            call = f"Module.{name}.Linear.forward.0"
            t.save(value, data / f"{call}.output.0.pt")
            rows[call] = {"input_args": [], "input_kwargs": {}, "output": [_msprobe_row(call, value)]}
        dump = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": str(data)}
        (work / side / "dump.json").write_text(json.dumps(dump | {"data": rows}))
        (work / side / "stack.json").write_text(json.dumps({call: [] for call in rows}))
        (work / side / "construct.json").write_text(json.dumps(dict.fromkeys(rows)))
    (work / "result").mkdir()

    def compare() -> None:
        from msprobe.msprobe import main

        files = {"-tp": work / "device" / "dump.json", "-gp": work / "golden" / "dump.json", "-o": work / "result"}
        sys.argv = ["msprobe", "compare", *(str(part) for item in files.items() for part in item)]
        main()
        assert any((work / "result").iterdir()), "msprobe wrote no result"

    return compare


def _msprobe_row(call: str, value) -> dict:
    wide = value.float()
    statistics = {"Max": wide.max(), "Min": wide.min(), "Mean": wide.mean(), "Norm": wide.norm()}
    return {
        "type": "torch.Tensor",
        "dtype": str(value.dtype),
        "shape": list(value.shape),
        **{name: float(number) for name, number in statistics.items()},
        "requires_grad": False,
        "data_name": f"{call}.output.0.pt",
    }


def sglang(golden: dict, device: dict, work: Path) -> Work:
    """SGLang's dump comparator on its dumper's files."""
    import torch as t

    # Only the dumper's HTTP control needs it, and it pulls in the whole serving engine.
    sys.modules["sglang.srt.managers.io_struct"] = MagicMock()
    from sglang.srt.debug_utils.comparator import entrypoint

    for side, values in (("golden", golden), ("device", device)):
        (work / side).mkdir()
        for index, (name, value) in enumerate(values.items()):
            meta = {"name": name, "step": 0, "rank": 0, "dump_index": index}
            tags = "___".join(f"{key}={part}" for key, part in meta.items())
            t.save({"value": value, "meta": meta}, work / side / f"{tags}.pt")

    def compare() -> None:
        paths = ["--baseline-path", str(work / "golden"), "--target-path", str(work / "device")]
        options = entrypoint.parse_args([*paths, "--diff-threshold", "1.0"])
        entrypoint.run(options)

    return compare


def main() -> None:
    """Prepare, then time one comparison."""
    given = _options()
    if find_spec(MODULES[given.peer]) is None or find_spec("torch") is None:
        print(json.dumps({"error": "not installed"}))
        return
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        found = measured(given.peer, given.folder, given.dtype, given.pairs, Path(name))
    print(json.dumps(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=list(MODULES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("dtype")
    parser.add_argument("pairs", type=int)
    return parser.parse_args()


def measured(peer: str, folder: Path, dtype: str, pairs: int, work: Path) -> dict:
    """Seconds and bytes, or why there are none."""
    try:
        sides = [tensors(folder, dtype, pairs, side) for side in ("golden", "device")]
        size = sum(value.numel() * value.element_size() for side in sides for value in side.values())
        compare = globals()[peer](*sides, work)
        start = time.perf_counter()
        compare()
        return {"seconds": time.perf_counter() - start, "bytes": size}
    except (Exception, SystemExit) as problem:
        return {"error": f"did not run: {type(problem).__name__}: {str(problem)[:120]}"}


if __name__ == "__main__":
    main()
