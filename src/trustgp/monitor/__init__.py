"""Monitoring of a running robot: a verdict on each frame of sensor values."""
