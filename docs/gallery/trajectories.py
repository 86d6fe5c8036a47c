"""Trajectories, and what `groups` are for

A network predicts the torques of an arm; it was trained on thirty motions. Rows of one motion are nearly
duplicates, so a left-out row says little about the next motion. `groups` gives the motion of each row.
"""

# %%
# **The recording**: thirty slow motions of a simulated 7-joint arm, every twentieth row of each.
import torch
from torch import nn

import trustgp
from trustgp.plots import BLUE, GREEN, GREY, INK, ORANGE, draw_band, figure
from trustgp_experiments.datasets import simulate


def motions(count, seed):
    made = simulate(rows=500 * count, seed=seed)
    return made.inputs[::20], made.targets[::20, :1]  # 25 rows a motion; the torque of the first joint, N m


train, motion = motions(30, seed=0), torch.arange(30).repeat_interleave(25)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(21, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimiser = torch.optim.Adam(network.parameters(), 5e-3)
for _ in range(600):
    optimiser.zero_grad()
    (network(train[0]) - train[1]).square().mean().backward()
    optimiser.step()
network.eval()

# %%
# **Three fits**: without motions, with the motion of each row, and with rows of eight other motions.
models = {
    "neither": trustgp.fit(network, train, progress=False),
    "groups": trustgp.fit(network, train, groups=motion, progress=False),
    "validation": trustgp.fit(network, train, validation=motions(8, seed=1), progress=False),
}

# %%
# **Twenty new motions**: what share of the torques is inside the interval of each level?
inputs, torques = motions(20, seed=2)
levels, row = torch.linspace(0.05, 0.95, 19), torch.arange(75)
with figure("coverage_on_new_motions.png", width=9, height=3.6) as page:
    left, right = page.subplots(1, 2, width_ratios=[2, 3])
    left.plot([0, 1], [0, 1], "--", color=INK, lw=1, label="ideal")
    for (name, model), colour in zip(models.items(), (ORANGE, GREEN, BLUE), strict=True):
        p = model.predict(inputs)
        low, high = p.interval(levels.tolist())  # [19, rows, 1]
        inside = ((low <= torques) & (torques <= high)).double().mean((1, 2))
        left.plot(levels, inside, color=colour, label=name)
        print(f"{name:10}: {inside[-1]:.1%} inside 95 %, mean width {(high - low)[-1].mean():.2f} N m")
    left.set(xlabel="level of the interval", ylabel="share inside")
    draw_band(right, row, p.mean[:75, 0], (high - low)[-1, :75, 0] / 2, label="validation", line="network")
    right.plot(row, torques[:75], ".", color=GREY, ms=4, label="measured")
    right.set(xlabel="row, 25 of each motion", ylabel="torque of joint 1, N m")
    page.legend(loc="outside upper center", ncols=7)

# %%
# Without motions the interval is too narrow on new ones. `groups` and rows of other motions make it wide
# enough. Where rows look like a time series and neither is passed, `fit` warns; every twentieth row does
# not.

# %%
# **When not to use it.** If you have rows of motions that the network was not trained on, pass them as
# `validation`: `groups` must estimate what the network would have predicted without a motion. Neither helps
# on motions of another kind.
