"""Recorded logs, ROS 2 bags and MCAP files: joint states out of them, accelerations, verdicts into a copy."""

from .monitor.logs import Differentiator, JointState, LogError, accelerations, annotate, joint_states, record

__all__ = ["Differentiator", "JointState", "LogError", "accelerations", "annotate", "joint_states", "record"]
