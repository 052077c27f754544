"""The twentieth set, of two authors: the target, and the drafter with the loop."""
