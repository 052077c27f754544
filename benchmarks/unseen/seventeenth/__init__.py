"""The seventeenth set, by the part of the pipeline."""
