"""Trajectories, and what `groups` are for

A network that gives the torques of an arm is trained on thirty motions. Rows of one motion are nearly copies
of each other, so a row left out tells little about the next motion. Tell `fit` which row belongs to which
motion.
"""

# %%
# **The recording**: thirty slow motions of a simulated 7-joint arm, of each every twentieth row; `motion` has
# its number.
import torch
from matplotlib import pyplot
from torch import nn

import trustgp
from trustgp_experiments.datasets import simulate


def motions(count, seed):
    made = simulate(rows=500 * count, seed=seed)
    return made.inputs[::20], made.targets[::20, :2], torch.arange(count).repeat_interleave(25)


inputs, targets, motion = motions(30, seed=0)
centre, spread = targets.mean(0), targets.std(0)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(21, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimiser = torch.optim.Adam(network.parameters(), 3e-3)
for _ in range(400):
    optimiser.zero_grad()
    (network(inputs) - (targets - centre) / spread).square().mean().backward()
    optimiser.step()
network.eval()
train = (inputs, (targets - centre) / spread)

# %%
# **Three fits**: told nothing, told the motions, and given rows of eight other motions. (Where rows look like
# a time series and neither is given, `fit` warns; of every twentieth row it cannot tell.)
held = motions(8, seed=1)
models = {
    "neither": trustgp.fit(network, train, progress=False),
    "groups": trustgp.fit(network, train, groups=motion, progress=False),
    "validation": trustgp.fit(
        network, train, validation=(held[0], (held[1] - centre) / spread), progress=False
    ),
}

# %%
# **Twenty new motions**: what share of the torques lies within the interval of each level?
test = motions(20, seed=2)
truth, levels = (test[1] - centre) / spread, torch.linspace(0.05, 0.99, 30)


def within(low, high):
    return float(((low <= truth) & (truth <= high)).float().mean())


figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=[2, 3])
left.plot([0, 1], [0, 1], "k--", lw=1)
for name, model in models.items():
    p = model.predict(test[0])
    intervals = [p.interval(level) for level in levels.tolist()]
    left.plot(levels, [within(*interval) for interval in intervals], label=name)
    low, high = p.interval(0.95)
    print(f"{name:10}: {within(low, high):.1%} within 95 %, mean width {(high - low).mean():.2f}")
left.set(xlabel="level", ylabel="share within", title="Coverage on new motions")
left.legend()
low, high = models["groups"].predict(test[0][:75]).interval(0.95)
right.fill_between(range(75), low[:, 0], high[:, 0], alpha=0.3, label="95 % interval, groups")
right.plot(truth[:75, 0], "k", lw=1, label="torque")
right.set(xlabel="row, 25 a motion", title="Three new motions, first torque")
right.legend(loc="upper left", fontsize="small")

# %%
# Told nothing, the error bar is a guess: here it is much too wide, on other data it may be too narrow.
# `groups` comes nearer, and with rows of other motions the coverage is right at every level.

# %%
# **When not to use it.** If you have rows of other motions that the network was not trained on, pass them as
# `validation`: that is better than `groups`, which must guess what the network would have said without a
# motion. Neither helps on motions of another kind. `examples/gru_torques.py` in the repository has a
# recurrent network over windows of such rows.
