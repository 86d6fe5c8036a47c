"""A fitted model as one module of plain tensor operations."""
