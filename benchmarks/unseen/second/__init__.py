"""The second set, by the part of the pipeline."""
