"""The tenth set, by the part of the pipeline."""
