"""Sampled rounds judged decision by decision: `oracle.py` has the equations, `replay.py` takes each decision again."""
