"""The rollback gate: what random accept / reject histories leave in the caches, compared with never having speculated.

`gate.py` has the checks, `explore.py` draws and shrinks histories, `play.py` plays one, `invariants.py` says what
holds.
"""

from parity.gates.rollback.gate import checks

__all__ = ["checks"]
