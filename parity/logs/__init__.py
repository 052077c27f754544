"""Lines of compiler and run logs that say: what was asked for did not run, something else did."""
