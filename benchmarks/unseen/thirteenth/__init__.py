"""The thirteenth set, by the part of the pipeline."""
