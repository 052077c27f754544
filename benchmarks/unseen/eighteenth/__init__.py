"""The eighteenth set, by the part of the pipeline."""
