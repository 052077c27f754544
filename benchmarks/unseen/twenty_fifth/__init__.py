"""The twenty-fifth set: sixty-four defects, thirty-two of them conditional."""
