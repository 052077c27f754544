"""The twenty-third set: fifty-nine defects, thirty of them conditional."""
