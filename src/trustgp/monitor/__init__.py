"""A running robot's verdicts: frames in, `ok` or not out."""
