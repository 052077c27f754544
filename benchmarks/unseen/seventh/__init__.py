"""The seventh set, by the part of the pipeline."""
