"""The fit: from a network and its training rows to a fitted state."""
