"""Words of reports where there is nothing to name."""

from __future__ import annotations

from math import inf

from rich.console import Console

from parity.diagnose.residuals import Residual
from parity.reports import diagnosis


class _Nothing:
    components = ()

    def __getattr__(self, name):
        return ()


def test_what_is_unexplained_and_has_no_place_names_none(capsys):
    rest = Residual("accept.emitted", True, inf, None, inf, None)
    diagnosis._print_unexplained(Console(width=160), rest, _Nothing())
    said = capsys.readouterr().out
    assert said.startswith("unexplained: accept.emitted") and "None" not in said
