"""Local Gaussian processes: who gets which rows, what an expert keeps, how they answer together."""
