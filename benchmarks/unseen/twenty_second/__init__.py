"""The twenty-second set: sixty defects, thirty of them conditional."""
