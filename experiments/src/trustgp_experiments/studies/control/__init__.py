"""A simulated arm in closed loop."""
