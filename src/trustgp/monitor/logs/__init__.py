"""Joint states from recorded logs, ROS 2 bags and MCAP files, without ROS: `pip install "trustgp[logs]"`."""

from .annotate import annotate, joint_states, record
from .formats import JointState, LogError

__all__ = ["JointState", "LogError", "annotate", "joint_states", "record"]
