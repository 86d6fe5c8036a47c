"""Networks of the studies, and their training."""
