"""The first set, by the part of the pipeline."""
