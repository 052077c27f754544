"""The twenty-first set: sixty defects, thirty of them conditional."""
