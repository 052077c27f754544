"""Gates read a checkpoint's config.json within limits, and refuse in a sentence what is none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parity import limits
from parity.errors import UsageError
from parity.gates.positions import not_refused
from parity.gates.rollback.baseline import window
from parity.gates.rope import read_schedule


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "{}" + " " * limits.CONFIG_BYTES])
def test_a_config_that_is_none_or_endless_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    for read in (lambda: read_schedule(tmp_path), lambda: not_refused(None, tmp_path, "target")):
        with pytest.raises(UsageError, match=r"config\.json"):
            read()
    model = SimpleNamespace(target=SimpleNamespace(path=str(tmp_path)))
    assert window(SimpleNamespace(manifest=SimpleNamespace(model=model))) is None
