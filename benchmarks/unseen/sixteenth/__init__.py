"""The sixteenth set, by the part of the pipeline."""
