"""Networks that the studies need, and how they are trained."""
