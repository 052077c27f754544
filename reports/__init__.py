"""What the instrument found, printed: a comparison (terminal), dumps, gates, a diagnosis, a night, history and others.

Records come in, text goes out; of the instrument only the command line and the interface import this package. `page` is
the report of a night.
"""
