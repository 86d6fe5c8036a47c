"""Classes: calibration and novelty, beside the peers."""
