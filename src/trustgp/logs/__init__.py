"""Joint states from recorded logs, ROS 2 bags and MCAP files, without ROS: `pip install "trustgp[logs]"`."""

from .joint_state import Differentiator, JointState, LogError
from .reader import joint_states

__all__ = ["Differentiator", "JointState", "LogError", "joint_states"]
