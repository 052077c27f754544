"""The third set, by the part of the pipeline."""
