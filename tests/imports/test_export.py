"""A dump as one file: it takes nobody's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.errors import UsageError
from parity.imports import files
from tests.meta.dumps import clean, write
from tests.meta.worlds import Size


def test_of_two_writers_of_one_file_one_is_refused(tmp_path, monkeypatch):
    _, run = write(clean(Size(prompts=(8,))), tmp_path)
    out, key = tmp_path / "dump.npz", files._key

    def meanwhile(*place):
        out.write_text("another's")
        return key(*place)

    monkeypatch.setattr(files, "_key", meanwhile)
    with pytest.raises(UsageError, match="exists already"):
        files.export_npz(run, out)
    assert out.read_text() == "another's" and {path.name for path in Path(tmp_path).iterdir()} == {
        "golden",
        "run",
        "dump.npz",
    }
