"""What a prediction costs, on one row and on many, in each runtime."""
