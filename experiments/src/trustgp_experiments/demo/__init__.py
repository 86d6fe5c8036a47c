"""`trustgp demo`: the main features on generated data."""
