"""A monitor on a robot's log

A recorded log of joint states is read message by message, and a monitor decides for each whether the
network's torques may be used: ok, uncertain, novel, or invalid input. ROS is not needed.
"""

# %%
# **The network** predicts torques from positions and velocities. It was trained on slow motions only.
import json

import numpy as np
import torch
from mcap.writer import Writer

import trustgp
from trustgp import logs
from trustgp.plots import BLUE, INK, draw_band, figure
from trustgp_experiments.datasets import simulate
from trustgp_experiments.peers import mlp, train


def rows(count, style, seed, every=1):
    made = simulate(rows=every * count, style=style, seed=seed)
    return made.inputs[::every, :14], made.targets[::every]


inputs, targets = rows(3000, "slow", seed=0, every=10)
network = train(mlp([14, 64, 7], activation=torch.nn.Tanh), inputs, targets, epochs=60, learning_rate=1e-2)
model = trustgp.fit(network, (inputs, targets), validation=rows(1000, "slow", 1, 20), progress=False)

# %%
# **A log**, as a driver would record it: slow motion, then fast motion, and for a while a broken sensor.
# Skip this: you have an MCAP file or a ROS 2 bag.
states, torques = (torch.cat(parts) for parts in zip(rows(400, "slow", 7), rows(400, "fast", 8), strict=True))
states[200:220, 1] = torch.nan
joints = [f"joint{number}" for number in range(1, 8)]
with open("recorded.mcap", "wb") as file:
    (writer := Writer(file)).start()
    channel = writer.register_channel("/joint_states", "json", schema_id=0)
    for number, row in enumerate(states.tolist()):
        message = {"name": joints, "position": row[:7], "velocity": row[7:]}
        writer.add_message(channel, 10**7 * number, json.dumps(message).encode(), 0)
    writer.finish()

# %%
# **A verdict for each message.**
monitor = trustgp.Monitor(model)
messages = logs.joint_states("recorded.mcap", joints=joints, needs=("position", "velocity"))
verdicts = [monitor(np.concatenate([state.position, state.velocity])) for state in messages]
print(len(verdicts), "messages:", {k: f"{share:.0%}" for k, share in monitor.summary()["shares"].items()})

# %%
seconds, p = torch.arange(len(verdicts)) / 100, model.predict(states)
with figure("verdicts_along_a_log.png", width=9, height=4.2) as page:
    above, below = page.subplots(2, sharex=True, height_ratios=[2, 1])
    half = torch.where(p.valid, 2 * p.std[:, 1], torch.nan)
    draw_band(above, seconds, p.mean[:, 1], half, label="2 std", line="network")
    above.plot(seconds, torques[:, 1], color=INK, lw=0.8, label="measured")
    above.set(ylabel="torque of joint 2, N m")
    below.plot(seconds, [verdict.status for verdict in verdicts], "|", color=BLUE)
    below.set(xlabel="time, s; fast motion from 4 s on")
    page.legend(loc="outside upper center", ncols=3)

# %%
# **When not to use it.** A verdict is about one frame: false alarms come in bursts, since frames of one
# motion are similar, and 1 % of them is one a second at 100 Hz. Choose limits of your own before a robot
# acts on them ([how](../monitor.md#the-two-limits)).
