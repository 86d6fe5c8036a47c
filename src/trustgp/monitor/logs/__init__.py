"""Joint states from recorded logs, ROS 2 bags and MCAP files, without ROS: `pip install "trustgp[logs]"`."""

from .annotate import annotate, joint_states, record
from .joint_state import Differentiator, JointState, LogError, accelerations

__all__ = ["Differentiator", "JointState", "LogError", "accelerations", "annotate", "joint_states", "record"]
