"""A monitor over a recorded log: joint positions and velocities in, torques with error bars out.

    python examples/monitor_log.py [--log BAG_OR_MCAP] [--out judged]

Without --log it records the simulated arm first: slow motions as in training, a broken sensor, fast motions.
It writes the verdicts as lines of JSON, and a plot. It needs no ROS, but two extras:
pip install "trustgp[logs,plots]".
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from mcap.writer import Writer
from torch import Tensor, nn

import trustgp
from trustgp import logs
from trustgp_experiments.datasets import simulate

JOINTS = tuple(f"joint{number}" for number in range(1, 8))
RATE = 100  # messages a second
COLOURS = {"ok": "tab:green", "uncertain": "tab:orange", "novel": "tab:red", "invalid input": "black"}


def rows(count: int, style: str, seed: int, *, every: int = 1) -> tuple[Tensor, Tensor]:
    """Positions and velocities [n, 14], and torques [n, 7]; accelerations are not in a JointState.

    One row of so many is kept: the same number of rows then tells of more motions.
    """
    made = simulate(rows=every * count, style=style, seed=seed)
    return made.inputs[::every, :14], made.targets[::every]


def trained(inputs: Tensor, targets: Tensor, *, width: int, steps: int) -> nn.Module:
    """A small MLP that standardises its inputs by a layer of its own."""
    torch.manual_seed(0)
    first = nn.Linear(14, 14)
    with torch.no_grad():
        first.weight.copy_(torch.diag(1 / inputs.std(dim=0)))
        first.bias.copy_(-inputs.mean(dim=0) / inputs.std(dim=0))
    network = nn.Sequential(first, nn.Linear(14, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
    network.append(nn.Linear(width, 7))
    optimiser, generator = torch.optim.Adam(network.parameters(), 3e-3), torch.Generator().manual_seed(0)
    for _ in range(steps):
        index = torch.randint(0, len(inputs), (256,), generator=generator)
        optimiser.zero_grad()
        ((network(inputs[index]) - targets[index]) / targets.std(dim=0)).square().mean().backward()
        optimiser.step()
    return network.eval()


def record(path: Path, count: int, topic: str) -> None:
    """Slow motion, then fast motion; in between the second joint's sensor is broken for a while."""
    parts = [rows(count // 2, "slow", seed=7), rows(count - count // 2, "fast", seed=8)]
    inputs, targets = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
    inputs[count // 4 : count // 4 + 20, 1] = np.nan
    order = np.arange(7)[::-1]  # as some drivers do: not in the order of the kinematic chain
    with open(path, "wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel(topic, "json", schema_id=0)
        for number, (row, torque) in enumerate(zip(inputs, targets, strict=True)):
            values = {"position": row[:7][order], "velocity": row[7:][order], "effort": torque[order]}
            message = {name: [None if np.isnan(v) else v for v in value] for name, value in values.items()}
            data = json.dumps({"name": [JOINTS[joint] for joint in order], **message}).encode()
            writer.add_message(channel, 10**18 + number * 10**9 // RATE, data, 0)
        writer.finish()


def plot(
    path: Path, states: list[logs.JointState], verdicts: list[trustgp.Verdict], threshold: float
) -> None:
    """One torque with its error bar, the novelty score, and the status as colours."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds = np.array([(state.time - states[0].time) / 1e9 for state in states])
    gap = np.full(7, np.nan)
    mean = np.array([gap if v.mean is None else v.mean.numpy() for v in verdicts])[:, 1]
    std = np.array([gap if v.std is None else v.std.numpy() for v in verdicts])[:, 1]
    score = np.array([np.nan if v.score is None else v.score for v in verdicts])
    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(9, 5), layout="constrained")
    above.plot(seconds, [state.effort[1] for state in states], "k", lw=0.8, label="measured")
    above.plot(seconds, mean, "tab:blue", lw=0.8, label="network")
    above.fill_between(seconds, mean - 2 * std, mean + 2 * std, color="tab:blue", alpha=0.2, label="2 std")
    above.set_ylabel(f"{states[0].names[1]}, N m")
    below.plot(seconds, score, "k", lw=0.8)
    below.axhline(threshold, color="tab:red", ls="--", lw=0.8, label="threshold")
    for name, colour in COLOURS.items():
        where = np.array([v.status == name for v in verdicts])
        below.fill_between(
            seconds, 0, 1, where=where, color=colour, alpha=0.25, lw=0, step="mid", label=name,
            transform=below.get_xaxis_transform(),
        )  # fmt: skip
    below.set(xlabel="time, s", ylabel="novelty score")
    for axis in (above, below):
        axis.legend(loc="upper left", fontsize="x-small", ncols=3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> trustgp.UncertaintyModel:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--log", type=Path, help="a ROS 2 bag or an MCAP file of an arm with these seven joints"
    )
    parser.add_argument("--topic", default="/joint_states")
    parser.add_argument("--out", type=Path, default=Path("judged"), help="a folder, made if need be")
    parser.add_argument("--rows", type=int, default=6000, help="to train on")
    parser.add_argument("--messages", type=int, default=2000, help="to record")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.log
    if log is None:
        log = options.out / "recorded.mcap"
        record(log, options.messages, options.topic)

    inputs, targets = rows(options.rows, "slow", seed=0, every=10)
    network = trained(inputs, targets, width=options.width, steps=options.steps)
    model = trustgp.fit(network, (inputs, targets), validation=rows(1000, "slow", seed=1, every=20))
    monitor = trustgp.Monitor(model, window=RATE)  # statistics of the last second

    states = list(logs.joint_states(log, topic=options.topic, joints=JOINTS))
    verdicts = [monitor(np.concatenate([state.position, state.velocity])) for state in states]
    made = options.out / "verdicts.jsonl"
    with open(made, "w") as file:
        file.writelines(json.dumps(verdict.as_dict()) + "\n" for verdict in verdicts)
    plot(options.out / "monitor.png", states, verdicts, monitor.threshold)
    print(monitor)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in monitor.summary()["shares"].items())
    print(f"{len(states)} messages: {shares}; largest novelty score {monitor.summary()['largest_score']:.3g}")
    print(f"wrote {made} and {options.out / 'monitor.png'}")
    return model


if __name__ == "__main__":
    main()
