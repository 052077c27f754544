"""The fifteenth set, by the part of the pipeline."""
