"""The paper's bound of the division, and what it says about the error."""
