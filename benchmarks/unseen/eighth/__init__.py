"""The eighth set, by the part of the pipeline."""
