"""From a failing comparison to its causes.

`failing_run.py` finds the failure, `search.py` and `step.py` try hypotheses on it (`trials.py`, `counterfactual.py`;
`ranking.py` orders the trials), `causes.py` names the causes one after another, `diagnosis.py` tells them; `gates.py`
reads what only gates show.
"""

from parity.diagnose.cause import Cause
from parity.diagnose.diagnosis import Diagnosis, diagnose, inconclusive, renumbered, undecided

__all__ = ["Cause", "Diagnosis", "diagnose", "inconclusive", "renumbered", "undecided"]
