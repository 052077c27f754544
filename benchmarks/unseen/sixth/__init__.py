"""The sixth set, by the part of the pipeline."""
