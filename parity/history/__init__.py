"""The nights' figures in one table, and what changed in them (docs/history.md).

`append` records a night, `load` reads the table, `verdicts` says what changed; `ratchet` proposes tighter bounds.
"""

from parity.history.acknowledged import acknowledge, acknowledged, acknowledgements
from parity.history.changes import Change
from parity.history.repeats import Suspicion, suspicious
from parity.history.series import WINDOW
from parity.history.steps import Bands
from parity.history.store import append, known_night, load, nights
from parity.history.verdicts import gathered, verdicts, waiting

__all__ = [
    "WINDOW",
    "Bands",
    "Change",
    "Suspicion",
    "acknowledge",
    "acknowledged",
    "acknowledgements",
    "append",
    "gathered",
    "known_night",
    "load",
    "nights",
    "suspicious",
    "verdicts",
    "waiting",
]
