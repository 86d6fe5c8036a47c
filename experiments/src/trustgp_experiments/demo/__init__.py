"""`trustgp demo`: the main job without data."""
