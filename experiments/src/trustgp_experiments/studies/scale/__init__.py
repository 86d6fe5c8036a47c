"""Time and memory as the rows grow."""
