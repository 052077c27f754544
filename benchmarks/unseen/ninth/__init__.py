"""The ninth set, by the part of the pipeline."""
