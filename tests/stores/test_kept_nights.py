"""Nights on an object store: two machines, a killed one, a slow and a failing store; nothing is lost."""

from __future__ import annotations

import signal

import pytest

from parity.errors import UsageError
from parity.nightly import kept
from parity.nightly.folder import NightFolder
from parity.nightly.kept import KeptNight, kept_night
from parity.remote import Unreachable
from tests.history.synthetic import night, results, world
from tests.stores.test_s3 import wait_for, writer

CODE = """
import sys
from pathlib import Path
from parity.nightly.folder import NightFolder
from parity.nightly.kept import kept_night
from tests.stores.test_kept_nights import found
at = kept_night(sys.argv[1], Path(sys.argv[2]))
folder = NightFolder(at.path)
folder.add(found()[1])
at.keep(folder, found()[1])
"""


def found():
    return results(world(1, 1, 2), 0)


def begun(url, nights) -> tuple[KeptNight, NightFolder]:
    """A night of two cells, judged on the machine that has these nights."""
    at = kept_night(url, nights)
    cells = tuple(one.cell for one in found())
    folder = NightFolder.start(at.path, night(world(1, 1, 2), 0).model_copy(update={"cells": cells}))
    at.begin(folder)
    return at, folder


def judged(at: KeptNight, folder: NightFolder, number: int, **changes) -> None:
    result = found()[number].model_copy(update=changes)
    folder.add(result)
    at.keep(folder, result)


def continued(url, nights) -> tuple[KeptNight, NightFolder]:
    at = kept_night(url, nights)
    folder = NightFolder(at.path)
    at.begin(folder)
    return at, folder


def test_another_machine_goes_on_with_a_night_and_both_have_all_of_it(bucket, tmp_path):
    at, here = begun(bucket, tmp_path / "here")
    judged(at, here, 0)
    other, there = continued(bucket, tmp_path / "there")
    assert there.night == here.night and there.missing() == (here.night.cells[1].name,)
    judged(other, there, 1)
    (there.path / "report.html").write_text("<p>")
    (there.path / "cells/made.log").write_text("printed")
    other.end(there)
    at.fetch()
    assert here.results() == there.results() and not here.missing()
    stored = {path.removeprefix(at.root + "/") for path in at.files.find(at.root)}
    assert {"report.html", "cells/made.log", "night.json"} < stored and len(stored) == 5


def test_of_two_machines_that_begin_at_once_the_second_goes_on_with_the_first_one_s_night(bucket, tmp_path):
    second = kept_night(bucket, tmp_path / "there")
    _, here = begun(bucket, tmp_path / "here")
    folder = NightFolder.start(second.path, here.night.model_copy(update={"name": "20261002T020000.000"}))
    with pytest.raises(UsageError, match="another machine began"):
        second.begin(folder)
    assert continued(bucket, tmp_path / "there")[1].night == here.night


def test_a_night_with_results_is_not_given_up_for_another_machine_s(bucket, tmp_path):
    at, here = begun(bucket, tmp_path / "here")
    judged(at, here, 0)
    at.files.pipe_file(f"{at.root}/night.json", b"{}")
    with pytest.raises(UsageError, match="are different nights"):
        at.begin(here)
    assert len(here.results()) == 1


def test_a_result_that_is_there_and_then_gone_is_not_called_kept(bucket, tmp_path, monkeypatch):
    at, here = begun(bucket, tmp_path / "here")

    def there(*of, **how):
        raise FileExistsError

    monkeypatch.setattr(at.files, "pipe_file", there)
    with pytest.raises(UsageError, match="was there and is gone"):
        judged(at, here, 0)


def test_the_first_result_of_a_cell_counts_for_both(bucket, tmp_path):
    at, here = begun(bucket, tmp_path / "here")
    other, there = continued(bucket, tmp_path / "there")
    judged(at, here, 0)
    judged(other, there, 0, seconds=99.0)
    assert there.results() == here.results() and there.results()[0].seconds != 99


def test_a_killed_machine_leaves_no_half_result(bucket, tmp_path, way):
    begun(bucket, tmp_path / "here")
    way.waits = lambda method, path: 30.0 if method == "PUT" and "cells/" in path else 0.0
    process = writer(CODE, bucket, str(tmp_path / "there"))
    wait_for(lambda: any(method == "PUT" and "cells/" in path for method, path in way.seen))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    way.clear()
    assert continued(bucket, tmp_path / "new")[1].results() == ()
    mine = continued(bucket, tmp_path / "there")[1].results()
    assert len(mine) == 1, "the killed one had written it, and keeps it when it is begun again"
    assert continued(bucket, tmp_path / "new")[1].results() == mine


@pytest.mark.parametrize("fault", ["fails", "waits"])
def test_a_store_that_does_not_take_a_result_gets_it_at_the_end(fault, bucket, tmp_path, way, monkeypatch):
    at, here = begun(bucket, tmp_path / "here")
    monkeypatch.setattr(kept, "ANSWER", 0.5 if fault == "waits" else 60.0)
    setattr(way, fault, (lambda method, path: 20.0) if fault == "waits" else lambda method, path: method == "PUT")
    with pytest.raises(Unreachable, match="does not answer") as error:
        judged(at, here, 0)
    assert "\n" not in str(error.value) and here.results()
    way.clear()
    at.end(here)
    assert continued(bucket, tmp_path / "there")[1].results() == here.results()


def test_a_result_that_breaks_off_is_not_there(bucket, tmp_path, way):
    at, here = begun(bucket, tmp_path / "here")
    judged(at, here, 0)
    way.breaks = lambda method, path: method == "GET" and "cells/" in path
    with pytest.raises(Unreachable, match="does not answer"):
        kept_night(bucket, tmp_path / "there")
    way.clear()
    assert continued(bucket, tmp_path / "there")[1].results() == here.results()


def test_a_result_that_no_night_wrote_is_refused_with_both_places(bucket, tmp_path):
    at, here = begun(bucket, tmp_path / "here")
    at.files.pipe_file(f"{at.root}/cells/{here.night.cells[0].name}.json", b"{}")
    with pytest.raises(UsageError, match=f"it lies below {bucket} as well") as error:
        kept_night(bucket, tmp_path / "there")
    assert "\n" not in str(error.value)


def test_another_night_than_this_machine_s_is_refused(bucket, tmp_path):
    at, here = begun(bucket, tmp_path / "here")
    at.files.pipe_file(f"{at.root}/night.json", b"{}")
    with pytest.raises(UsageError, match="are different nights"):
        kept_night(bucket, tmp_path / "here")
    assert here.night


def test_a_night_at_an_url_is_judged_kept_and_shown_by_another_machine(bucket, tmp_path, tiny, parity, monkeypatch):
    matrix = tmp_path / "matrix.toml"
    lines = ("k = [2]", "[cases.one]", f"golden = '{tmp_path / 'none'}'", "[devices]", "mine = 'numpy'")
    pair = (f"{side} = '{tiny / side}'" for side in ("target", "drafter"))
    matrix.write_text("\n".join((*lines[:2], *pair, "max_new_tokens = 4", *lines[2:])) + "\n")
    first = parity("nightly", matrix, "--out", bucket, "--no-history")
    assert first.code == 3 and f"night  {bucket}" in first.out and "broken" in first.last
    monkeypatch.setenv("PARITY_HOME", str(tmp_path / "another"))
    second = parity("nightly", matrix, "--out", bucket, "--no-history")
    assert "broken       1/1" in first.out and "1/1" not in second.out, "no cell is judged again"
    assert (second.code, second.last) == (first.code, first.last.replace(str(parity.home), str(tmp_path / "another")))


@pytest.mark.parametrize("url", ["s3://nowhere/night", "nothing://night", "file:///night"])
def test_a_place_that_takes_no_night_is_one_sentence(way, url, parity):
    ended = parity("nightly", "--out", url, "--no-history", "--only", "*bfloat16")
    assert ended.code == 2 and ended.err.count("\n") == 1 and url in ended.err
