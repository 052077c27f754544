"""`parity scan-log`: every known line is found, ordinary lines are not, and nothing is no evidence."""

from __future__ import annotations

import io
import json

import pytest

from parity.logs.scan import fallbacks, scan

ORDINARY = """\
INFO 05-21 13:09:53 [parallel_state.py:1079] rank 2 in world size 8 is assigned as DP rank 0, PP rank 0, TP rank 2
INFO 04-17 20:54:09 [cuda.py:292] Using Flash Attention backend.
2024-03-19 22:27:23.000452:  1486537  INFO ||NEURON_CC_WRAPPER||: Call compiler with cmd: neuronx-cc compile --target=\
trn1
INFO:Neuron:100.00% of all operations (including primitives) (21 of 21) are supported
INFO:Neuron:There are 0 ops of 0 different types in the TorchScript that are not compiled by neuron-cc:
INFO:Neuron:Neuron successfully compiled 3 sub-graphs, Total fused subgraphs = 3
Compiler status PASS
no fallback was needed
UserWarning: a tap returned no kernel
I0000 xla/service/service.cc:174] XLA service initialized for platform Host
Counter: CachedCompile
"""


@pytest.mark.parametrize("fallback", fallbacks(), ids=lambda one: one.id)
def test_every_known_line_is_found_by_its_own_pattern(fallback, parity, tmp_path):
    (tmp_path / "run.log").write_text(ORDINARY + fallback.example + "\n" + ORDINARY)
    found = parity("scan-log", tmp_path / "run.log", "--json", tmp_path / "found.json")
    (hit,) = json.loads((tmp_path / "found.json").read_text())["hits"]
    assert found.code == 1 and (hit["id"], hit["line"]) == (fallback.id, ORDINARY.count("\n") + 1)
    assert f"run.log:{hit['line']}: " in found.out and fallback.reason in found.out


def test_the_table_is_whole():
    assert len({one.id for one in fallbacks()}) == len(fallbacks())
    for one in fallbacks():
        assert one.reason and one.sources and all(source.startswith("https://") for source in one.sources)


def test_an_ordinary_log_passes(parity, tmp_path):
    (tmp_path / "run.log").write_text(ORDINARY)
    assert parity("scan-log", tmp_path / "run.log").code == 0


@pytest.mark.parametrize("content", ["", " \n\n\t\n"])
def test_an_empty_log_shows_nothing(content, parity, tmp_path):
    (tmp_path / "empty.log").write_text(content)
    (tmp_path / "run.log").write_text(ORDINARY)
    assert parity("scan-log", tmp_path / "empty.log").code == 3
    both = parity("scan-log", tmp_path / "run.log", tmp_path / "empty.log")
    assert both.code == 3 and "empty.log" in both.last
    (tmp_path / "bad.log").write_text(fallbacks()[0].example)
    assert parity("scan-log", tmp_path / "empty.log", tmp_path / "bad.log").code == 1


def test_what_cannot_be_read_is_one_sentence(parity, tmp_path):
    (tmp_path / "packed.log").write_bytes(b"\x1f\x8b\x08\x00\x00\x00")
    for log in ("packed.log", "missing.log", "."):
        found = parity("scan-log", tmp_path / log)
        assert found.code == 2 and found.err.count("\n") == 1, found
    assert parity("scan-log").code == 2


def test_colours_odd_bytes_and_overwritten_lines(tmp_path):
    line = b"caf\xe9 \x1b[1;36m(Worker)\x1b[0;0m No \x1b[1mfeasible\x1b[0m kernel found for the problem\r\n"
    found = scan([("log", io.BytesIO(b"ok\n" + line))])
    assert [(hit.line, hit.fallback.id) for hit in found.hits] == [(2, "no-kernel-for-shape")]
    bar = b"10%\r50%\rNo feasible kernel found\r100%\n"
    assert scan([("log", io.BytesIO(bar))]).verdict == "fail"


def test_many_alike_are_counted_not_listed(parity, tmp_path):
    (tmp_path / "run.log").write_text("No feasible kernel found\n" * 50)
    found = parity("scan-log", tmp_path / "run.log")
    assert found.out.count("run.log:") == 3 and "50 lines" in found.out


def test_the_list_names_reason_and_source(parity):
    listed = parity("scan-log", "--list").out
    assert all(one.id in listed and one.sources[0] in listed for one in fallbacks())
