"""The twenty-sixth set: what goes wrong in real ports."""
