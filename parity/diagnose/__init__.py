"""From a failing comparison to its causes.

`failing_run.py` finds the failure, `search.py` and `step.py` try hypotheses on it (`trials.py`, `counterfactual.py`),
`diagnosis.py` names the causes one after another; `gates.py` reads what only gates show.
"""

from parity.diagnose.diagnosis import Cause, Diagnosis, diagnose, inconclusive, renumbered, undecided

__all__ = ["Cause", "Diagnosis", "diagnose", "inconclusive", "renumbered", "undecided"]
