"""The twelfth set, by the part of the pipeline."""
