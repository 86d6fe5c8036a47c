"""What all studies share: results, grids and runs."""
