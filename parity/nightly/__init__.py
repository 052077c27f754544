"""A night: a matrix expanded to cells (matrix, expand), run as jobs (run, engines, process, worker, goldens).

A cell is judged (cell, judge, speed, metrics) or timed (bench), and what it found is kept (records, folder) and told to
other programs (outputs). parity.history reads the records.
"""
