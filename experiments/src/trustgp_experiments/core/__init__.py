"""What all studies share: results, grids, figures' and runs' bookkeeping."""
