"""From a network and its rows to a fitted state."""
