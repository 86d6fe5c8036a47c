"""Joint states from recorded logs, ROS 2 bags and MCAP files, without ROS: `pip install "trustgp[logs]"`."""

from .joint_state import Differentiator, JointState, LogError, accelerations
from .reader import joint_states

__all__ = ["Differentiator", "JointState", "LogError", "accelerations", "joint_states"]
