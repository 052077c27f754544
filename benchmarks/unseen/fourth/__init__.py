"""The fourth set, by the part of the pipeline."""
