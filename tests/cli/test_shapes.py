"""`parity shapes`."""

from __future__ import annotations

import json

import pytest

from parity.device import multiply

SMALL = ("--prompt", 40, "--max-new-tokens", 3)


def test_the_list_is_a_table_and_json(parity, tmp_path):
    found = parity("shapes", *SMALL, "--json", tmp_path / "shapes.json")
    assert found.code == 0 and "8x288x96" in found.out and "target_layer.target_layer" in found.out
    listed = json.loads((tmp_path / "shapes.json").read_text())
    assert listed["rounds"] == 2 and listed["run"]["prompt"] == 40
    fusion = next(row for row in listed["gemms"] if (row["m"], row["k"], row["n"]) == (8, 288, 96))
    assert fusion["calls"] == 2 and fusion["places"][0]["weight"] == "fc"


def test_a_published_pair_by_name_or_by_folder(parity):
    from parity.bundled import published_configs

    folders = ("--target", published_configs() / "gpt-oss-20b", "--drafter", published_configs() / "p-eagle-20b")
    named, given = (parity("shapes", *pair, *SMALL, "--phase", "verify") for pair in (("--model", "20b"), folders))
    assert named.code == 0 and named.out == given.out and "5x2880x201088" in named.out and "8x8640" not in named.out


def test_a_run_judges_every_shape(parity, tmp_path):
    found = parity("shapes", *SMALL, "--run", "--phase", "draft", "--json", tmp_path / "found.json")
    assert found.code == 0 and found.last == "shapes verdict: pass", found
    judged = json.loads((tmp_path / "found.json").read_text())
    assert judged["verdict"] == "pass" and {one["verdict"] for one in judged["results"]} == {"pass"}
    assert len(judged["results"]) == found.out.count("\n") - 2 > 5 and judged["bounds"]["noise"]["bfloat16"] == 1.2


def test_a_broken_device_ends_with_one_and_says_how_to_see_it_again(parity, monkeypatch):
    def transposed(left, right, dtype, engine):
        return multiply(left, right.T if right.ndim == 2 and len(set(right.shape)) == 1 else right, dtype, engine)

    monkeypatch.setattr("parity.device.multiply", transposed)
    found = parity("shapes", "--gemm", "5x96x96", "--gemm", "5x96x128", *SMALL)
    assert found.code == 1 and "1 of 2 shapes, first 5x96x96" in found.last and "--gemm 5x96x96" in found.last
    assert found.out.splitlines()[1].startswith("fail") and found.out.splitlines()[3].startswith("pass")


def test_a_shape_of_the_pair_runs_as_the_pair_does(parity):
    found = parity("shapes", "--gemm", "5x96x6", *SMALL)
    assert found.code == 0 and "float32 of bfloat16" in found.out and found.out.count("5x96x6") == 1


def test_a_large_shape_runs_in_pieces_and_says_so(parity):
    found = parity("shapes", "--gemm", "3x64x5000", "--limit", 100_000, *SMALL)
    assert found.code == 0 and "in 4 pieces" in found.out


def test_a_device_without_multiply_is_inconclusive(parity):
    found = parity("shapes", "--run", "--device", "parity.device.variants:plain", *SMALL)
    assert found.code == 3 and "multiply" in found.err and found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--gemm", "5x96"), "--gemm 5x96"),
        (("--gemm", "0x96x5"), "--gemm 0x96x5"),
        (("--target", "."), "--drafter"),
        (("--target", "nowhere", "--drafter", "nowhere"), "nowhere"),
        (("--acceptance-length", "6"), "K + 1 = 5"),
        (("--prompt", "600"), "600"),
        (("--run", "--device", "abacus"), "--device abacus"),
        (("--run", "--device", "no.such:device"), "no.such"),
        (("-k", "0"), "-k"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments, word, parity):
    found = parity("shapes", *SMALL[2:], *arguments)
    assert found.code == 2 and word in found.err and found.err.count("\n") == 1, found


def test_nothing_to_run_is_inconclusive(parity):
    found = parity("shapes", "--run", "--phase", "commit", *SMALL)
    assert found.code == 3 and "inconclusive" in found.last


def test_a_device_of_ones_own(parity, monkeypatch, tmp_path):
    (tmp_path / "own_device.py").write_text(
        "import numpy as np\n"
        "def multiply(left, right, dtype):\n"
        "    return np.matmul(left.astype(np.float32), right.astype(np.float32)).astype(left.dtype)\n"
        "def make(**options): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = parity("shapes", "--gemm", "5x96x200", "--device", "own_device:make", *SMALL)
    assert found.code == 0, found
