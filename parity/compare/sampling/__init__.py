"""Sampled rounds judged decision by decision: `oracle.py` has the equations, `replay.py` takes each decision again,
`judging.py` those of a run on a golden that samples."""
