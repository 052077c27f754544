"""The fourteenth set, by the part of the pipeline."""
