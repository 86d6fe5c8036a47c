"""A ROS 2 node: joint states in; torques, their deviations and a diagnostic status out.

    python examples/ros2_node.py --ros-args -p file:=arm.onnx

The file contains the network and its error bar. It is written with the joints as names of the outputs, and
with a threshold:

    model.threshold()
    trustgp.export_onnx(model, "arm.onnx", rows, output_names=["joint1", "joint2"])

The node publishes `~/torque` and `~/deviation` (JointState, in `effort`) for each message that is valid, and
`/diagnostics` for all: OK, WARN where the robot should not rely on the torque (uncertain, novel), ERROR for
invalid inputs, STALE where no message came. It needs rclpy, numpy, and trustgp[export].
"""

from __future__ import annotations

import json
import sys

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from sensor_msgs.msg import JointState

import trustgp
from trustgp.export import open_onnx

LEVELS = {"ok": DiagnosticStatus.OK, "uncertain": DiagnosticStatus.WARN, "novel": DiagnosticStatus.WARN}


class TorqueNode(Node):
    """A verdict for each JointState, by a monitor on the file; joints may come in any order."""

    def __init__(self, **options) -> None:
        super().__init__("trustgp", **options)
        path = self.declare_parameter("file", "arm.onnx").value
        model = open_onnx(path)  # refused if it is damaged
        names = json.loads(model.metadata.get("output_names", "[]"))
        self.joints = list(self.declare_parameter("joints", names or [""]).value)
        self.fields = list(self.declare_parameter("fields", ["position", "velocity"]).value)  # of a row
        std = float(self.declare_parameter("std", 0.0).value)  # the largest acceptable deviation; 0: any
        stale = float(self.declare_parameter("stale", 0.5).value)  # seconds without a message
        if self.joints in ([], [""]):
            raise ValueError(f"{path} does not name its outputs; set the parameter joints, in their order.")
        self.monitor = trustgp.Monitor(model, std=std or None)
        self.torque = self.create_publisher(JointState, "~/torque", 10)
        self.deviation = self.create_publisher(JointState, "~/deviation", 10)
        self.diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.create_subscription(JointState, "joint_states", self.judge, 10)
        self.watchdog = self.create_timer(stale, self.report_silence)

    def judge(self, message: JointState) -> None:
        """One message: torque and deviation if it is valid, and its status."""
        self.watchdog.reset()
        verdict = self.monitor(self.row(message))
        if verdict.mean is not None and verdict.std is not None:
            for publisher, values in ((self.torque, verdict.mean), (self.deviation, verdict.std)):
                answer = JointState(name=self.joints, effort=values.double().tolist())
                answer.header.stamp = message.header.stamp
                publisher.publish(answer)
        numbers = {"novelty score": verdict.score, "threshold": self.monitor.threshold}
        level, text = LEVELS.get(verdict.status, DiagnosticStatus.ERROR), verdict.reason or verdict.status
        self.report(level, text, {k: f"{v:.4g}" for k, v in numbers.items() if v is not None})

    def row(self, message: JointState) -> np.ndarray:
        """Positions and velocities in the order of the joints; NaN, which is invalid, if one is missing."""
        rows = []
        for field in self.fields:
            values = dict(zip(message.name, getattr(message, field), strict=False))  # it may be empty
            rows += [values.get(joint, np.nan) for joint in self.joints]
        return np.array(rows, dtype=np.float32)

    def report_silence(self) -> None:
        """Called by the timer, which each message resets."""
        self.report(DiagnosticStatus.STALE, "no joint states", {})

    def report(self, level: bytes, text: str, numbers: dict[str, str]) -> None:
        """One status for all joints."""
        values = [KeyValue(key=key, value=value) for key, value in numbers.items()]
        status = DiagnosticStatus(level=level, name="trustgp: torque", message=text, values=values)
        array = DiagnosticArray(status=[status])
        array.header.stamp = self.get_clock().now().to_msg()
        self.diagnostics.publish(array)


def main(arguments: list[str] | None = None) -> None:
    rclpy.init(args=sys.argv if arguments is None else arguments)
    node = TorqueNode()
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
