"""The eleventh set, by the part of the pipeline."""
