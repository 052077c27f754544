"""The twenty-fourth set: sixty-four defects, thirty-two of them conditional."""
