"""Examples for packages that are seldom installed: with small stand-ins, and for real where they are."""

import importlib.util
import sys
import types
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from test_examples import example
from torch import nn

import trustgp

JOINTS = ["shoulder", "elbow"]


@dataclass
class Message:
    """Any ROS message: the fields that are named, and a header."""

    name: Any = ()
    position: Any = ()
    velocity: Any = ()
    effort: Any = ()
    level: Any = None
    message: str = ""
    values: Any = ()
    status: Any = ()
    key: str = ""
    value: str = ""
    header: Any = field(default_factory=lambda: SimpleNamespace(stamp=None))


class Status(Message):
    """Of diagnostics, with the constants of ROS 2."""

    OK, WARN, ERROR, STALE = b"\x00", b"\x01", b"\x02", b"\x03"


class Node:
    """Collects what is published, by topic."""

    parameters: dict[str, Any] = {}  # noqa: RUF012 - set by a test

    def __init__(self, name: str) -> None:
        self.sent: dict[str, list[Any]] = {}
        self.subscribed: dict[str, Any] = {}
        self.resets = 0

    def declare_parameter(self, name: str, default: Any) -> Any:
        return SimpleNamespace(value=self.parameters.get(name, default))

    def create_publisher(self, kind: type, topic: str, depth: int) -> Any:
        return SimpleNamespace(publish=self.sent.setdefault(topic, []).append)

    def create_subscription(self, kind: type, topic: str, callback: Any, depth: int) -> None:
        self.subscribed[topic] = callback

    def create_timer(self, seconds: float, callback: Any) -> Any:
        self.subscribed["timer"] = callback
        return SimpleNamespace(reset=lambda: setattr(self, "resets", self.resets + 1))

    def get_clock(self) -> Any:
        return SimpleNamespace(now=lambda: SimpleNamespace(to_msg=lambda: 7))


def module(name: str, **parts: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(parts)
    return made


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """A network of positions and velocities of two joints, and the file of its error bar."""
    pytest.importorskip("onnxruntime", reason='onnxruntime is not installed: pip install "trustgp[export]"')
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 2)).eval()
    inputs = torch.randn(200, 4)
    rows = inputs, network(inputs).detach() + 0.05 * torch.randn(200, 2)
    parts = [tuple(part[place] for part in rows) for place in (slice(100), slice(100, 200))]
    model = trustgp.fit(network, parts[0], validation=parts[1], num_experts=1, progress=False)
    model.threshold(false_alarm=0.05)
    path = tmp_path_factory.mktemp("arm") / "arm.onnx"
    trustgp.export_onnx(model, path, inputs[:3], output_names=JOINTS)
    return network, model, str(path)


@pytest.fixture
def ros(monkeypatch):
    """The stand-in for ROS 2."""
    messages = module("sensor_msgs.msg", JointState=Message)
    status = module("diagnostic_msgs.msg", DiagnosticArray=Message, DiagnosticStatus=Status, KeyValue=Message)
    parts = [module("rclpy"), module("rclpy.node", Node=Node), module("sensor_msgs"), messages]
    for part in (*parts, module("diagnostic_msgs"), status):
        monkeypatch.setitem(sys.modules, part.__name__, part)
    return lambda **parameters: monkeypatch.setattr(Node, "parameters", parameters)


def joint_state(row, names=JOINTS):
    order = [JOINTS.index(name) for name in names]
    return Message(name=names, position=list(row[:2][order]), velocity=list(row[2:][order]))


def test_a_node_answers_joint_states_with_torques_deviations_and_a_status(ros, arm):
    network, model, path = arm
    ros(file=path)
    node = example("ros2_node").TorqueNode()
    judge, row = node.subscribed["joint_states"], np.array([0.1, -0.2, 0.3, 0.0], dtype=np.float32)
    for names in (JOINTS, JOINTS[::-1]):  # in any order
        judge(joint_state(row, names))
        answer, deviation = node.sent["~/torque"][-1], node.sent["~/deviation"][-1]
        assert answer.name == JOINTS
        expected = model.predict(torch.tensor(row)[None])
        assert answer.effort == pytest.approx(network(torch.tensor(row)).tolist(), abs=1e-5)
        assert deviation.effort == pytest.approx(expected.std[0].tolist(), rel=1e-3)
        assert node.sent["/diagnostics"][-1].status[0].level == Status.OK
    broken = joint_state(row)
    broken.velocity = []
    for message, level, text in (
        (joint_state(100 * row), Status.WARN, "novel"),
        (joint_state(row * np.nan), Status.ERROR, "NaN"),
        (broken, Status.ERROR, "NaN"),
        (joint_state(row, JOINTS[:1]), Status.ERROR, "NaN"),
    ):
        before = len(node.sent["~/torque"])
        judge(message)
        status = node.sent["/diagnostics"][-1].status[0]
        assert (status.level, text in status.message) == (level, True)
        assert len(node.sent["~/torque"]) == before + (level == Status.WARN)
    node.subscribed["timer"]()
    assert node.sent["/diagnostics"][-1].status[0].level == Status.STALE
    assert node.resets == 6


def test_a_file_without_names_needs_the_joints(ros, arm, monkeypatch):
    node = example("ros2_node")
    runner = node.open_onnx(arm[2])
    runner.metadata = {name: text for name, text in runner.metadata.items() if name != "output_names"}
    monkeypatch.setattr(node, "open_onnx", lambda path: runner)
    ros(file=arm[2])
    with pytest.raises(ValueError, match="set the parameter joints"):
        node.TorqueNode()
    ros(file=arm[2], joints=JOINTS)
    assert node.TorqueNode().joints == JOINTS


class Trainer:
    """One pass of Lightning's training loop."""

    is_global_zero = True

    def __init__(self, callbacks, **options: Any) -> None:
        self.callbacks = callbacks

    def fit(self, network: nn.Module, train: Any, validation: Any) -> None:
        self.train_dataloader, self.val_dataloaders = train, validation
        optimiser = network.configure_optimizers()
        for _ in range(5):
            for number, batch in enumerate(train):
                optimiser.zero_grad()
                network.training_step(batch, number).backward()
                optimiser.step()
        for callback in self.callbacks:
            callback.on_fit_end(self, network)
        assert network.training


def test_lightning_writes_the_model_when_training_ends(monkeypatch, tmp_path, capsys):
    if importlib.util.find_spec("lightning") is None:
        parts = {"Trainer": Trainer, "LightningModule": nn.Module, "Callback": object}
        for made in (module("lightning"), module("lightning.pytorch", **parts)):
            monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.chdir(tmp_path)
    model = example("training_callbacks").main(["--epochs", "5"])
    assert "100 validation rows" in capsys.readouterr().out
    again = trustgp.load("model.trustgp", model.network)
    assert torch.equal(again.predict(torch.zeros(1, 3)).std, model.predict(torch.zeros(1, 3)).std)


def test_the_trainer_of_hugging_face_writes_the_model_when_training_ends(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason='transformers is not installed: pip install "trustgp[hf]"')
    callbacks = example("training_callbacks")
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("accelerate") is not None:
        model = callbacks.main(["--framework", "huggingface", "--epochs", "2"])
    else:  # the Trainer needs it: its own handler calls the callback
        from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

        callback, network = callbacks.huggingface_callback(progress=False), callbacks.Regressor()
        handler = CallbackHandler([callback], network, None, None, None)
        handler.train_dataloader, handler.eval_dataloader = (
            torch.utils.data.DataLoader(callbacks.batches(n, n), batch_size=50) for n in (200, 100)
        )
        where = SimpleNamespace(output_dir=str(tmp_path))
        handler.on_train_end(where, TrainerState(is_world_process_zero=True), TrainerControl())
        model = callback.model
        assert network.training
    assert "100 validation rows" in repr(model)
    again = trustgp.load("model.trustgp", model.network, select=lambda answer: answer)
    one, other = (each.predict({"inputs": torch.zeros(1, 3)}).std for each in (again, model))
    assert torch.equal(one, other)
