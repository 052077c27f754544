"""The gates of speculative decoding: what numbers alone cannot say, joined by AND.

`gate.py` holds their table and runs them, `context.py` what they judge; each gate is the module of its name.
"""

from parity.gates.gate import GATES, run_gate, run_gates

__all__ = ["GATES", "run_gate", "run_gates"]
