"""`python -m parity`."""

from parity.cli import main

main()
