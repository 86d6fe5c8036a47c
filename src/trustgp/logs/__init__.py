"""Joint states from recorded logs, ROS 2 bags and MCAP files, without ROS: `pip install "trustgp[logs]"`.

Examples:
    >>> differentiate = trustgp.logs.Differentiator()
    >>> for state in trustgp.logs.joint_states("arm.mcap", needs=["velocity"]):
    ...     acceleration = differentiate(state)
"""

from .joint_state import Differentiator, JointState, LogError
from .reader import joint_states

__all__ = ["Differentiator", "JointState", "LogError", "joint_states"]
