"""A monitor on a recorded log

A log of joint states is read message by message, and a monitor says of each whether the network's torques may
be used: ok, uncertain, novel, or invalid input. ROS is not needed.
"""

# %%
# **The network** gives torques from positions and velocities. It knows slow motions only.
import json

import numpy as np
import torch
from matplotlib import pyplot
from mcap.writer import Writer
from torch import nn

import trustgp
from trustgp.monitor import logs
from trustgp_experiments.datasets import simulate


def rows(count, style, seed, every=1):
    made = simulate(rows=every * count, style=style, seed=seed)
    return made.inputs[::every, :14], made.targets[::every]


inputs, targets = rows(3000, "slow", seed=0, every=10)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(14, 64), nn.Tanh(), nn.Linear(64, 7))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(500):
    optimiser.zero_grad()
    ((network(inputs) - targets) / targets.std(0)).square().mean().backward()
    optimiser.step()
model = trustgp.fit(
    network.eval(), (inputs, targets), validation=rows(1000, "slow", seed=1, every=20), progress=False
)

# %%
# **A log**, as a driver would record it: slow motion, then fast motion, and for a while a broken sensor.
joints = tuple(f"joint{number}" for number in range(1, 8))
parts = [rows(400, "slow", seed=7), rows(400, "fast", seed=8)]
states, torques = (torch.cat(part).double().numpy() for part in zip(*parts, strict=True))
states[200:220, 1] = np.nan
with open("recorded.mcap", "wb") as file:
    writer = Writer(file)
    writer.start()
    channel = writer.register_channel("/joint_states", "json", schema_id=0)
    for number, (row, torque) in enumerate(zip(states, torques, strict=True)):
        fields = {"position": row[:7], "velocity": row[7:], "effort": torque}
        numbers = {name: [None if np.isnan(v) else v for v in values] for name, values in fields.items()}
        writer.add_message(channel, 10**7 * number, json.dumps({"name": joints, **numbers}).encode(), 0)
    writer.finish()

# %%
# **Judge it**, one message after another.
monitor = trustgp.Monitor(model, window=100)
messages = logs.joint_states("recorded.mcap", joints=joints)
verdicts = [monitor(np.concatenate([state.position, state.velocity])) for state in messages]
count = len(verdicts)
print(count, "messages:", {name: f"{share:.0%}" for name, share in monitor.summary()["shares"].items()})

# %%
colours = {"ok": "tab:green", "uncertain": "tab:orange", "novel": "tab:red", "invalid input": "black"}
seconds = np.arange(count) / 100
gap = torch.full((7,), torch.nan)
mean, std = (np.stack([gap if value is None else value for value in values])[:, 1] for values in
             ([v.mean for v in verdicts], [v.std for v in verdicts]))  # fmt: skip
figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
axes.plot(seconds, torques[:, 1], "k", lw=0.8, label="measured")
axes.plot(seconds, mean, color="tab:blue", lw=0.8, label="network")
axes.fill_between(seconds, mean - 2 * std, mean + 2 * std, alpha=0.25, color="tab:blue", label="2 std")
for name, colour in colours.items():
    where = np.array([verdict.status == name for verdict in verdicts])
    axes.fill_between(
        seconds,
        0,
        0.04,
        where=where,
        color=colour,
        step="mid",
        lw=0,
        label=name,
        transform=axes.get_xaxis_transform(),
    )
axes.set(
    xlabel="time, s; fast motion from 4 s on", ylabel="torque of joint 2, N m", title="Verdicts along a log"
)
axes.legend(loc="upper left", ncols=4, fontsize="small")

# %%
# **When not to use it.** A verdict is about one frame: false alarms come in bursts, since frames of one
# motion are alike, and 1 % of them is one a second at 100 Hz. Choose limits of your own before a robot acts
# on them ([how](../monitor.md#the-two-limits)). For your own bag or MCAP file, `examples/monitor_log.py` in
# the repository is a program with options.
