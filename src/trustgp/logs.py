"""Recorded logs, ROS 2 bags and MCAP files: joint states and accelerations."""

from .monitor.logs import Differentiator, JointState, LogError, accelerations, joint_states

__all__ = ["Differentiator", "JointState", "LogError", "accelerations", "joint_states"]
