"""Local Gaussian processes: division of the rows, state of an expert, prediction of all experts."""
