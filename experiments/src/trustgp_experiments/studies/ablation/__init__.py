"""Each choice of the method on its own."""
