"""Which hypothesis explains the first failing stage: parts, values, parameters, conditions and pairs, tier by tier."""

from parity.diagnose.search.stage_trials import AHEAD
from parity.diagnose.search.tiers import HypothesisSearch

__all__ = ["AHEAD", "HypothesisSearch"]
