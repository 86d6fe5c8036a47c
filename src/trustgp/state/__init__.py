"""The fitted state: what it holds, what it answers, and its file."""
