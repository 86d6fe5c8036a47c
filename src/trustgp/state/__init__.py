"""The fitted state: its contents, its predictions, and its file."""
