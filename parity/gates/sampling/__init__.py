"""The sampling gate: `gate.py` has the checks; what replays decisions is in `parity/compare/sampling`."""

from parity.gates.sampling.gate import checks

__all__ = ["checks"]
