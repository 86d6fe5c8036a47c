"""The paper's toy: one input, gaps in the data."""
