"""A curve with a gap

Start here: a small network learns a noisy curve from rows with a gap in the middle, and trustgp says where
its answer can be trusted. The network itself stays as it is.
"""

# %%
# **The network** is any trained `torch.nn.Module`. This one has never seen a row between 0 and 1.5, nor
# beyond ±3.
import torch
from matplotlib import pyplot
from torch import nn

import trustgp


def draw(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator) * 4.5 - 3
    x = torch.where(x > 0, x + 1.5, x)
    return x, torch.sin(2 * x) + 0.3 * x + 0.1 * torch.randn(n, 1, generator=generator)


inputs, targets = draw(300, seed=0)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(500):
    optimiser.zero_grad()
    (network(inputs) - targets).square().mean().backward()
    optimiser.step()
network.eval()

# %%
# **One call.** The validation rows are new to the network; the size of the error bar is fitted to them.
model = trustgp.fit(network, (inputs, targets), validation=draw(100, seed=1), progress=False)

x = torch.linspace(-4.5, 4.5, 400)[:, None]
p = model.predict(x)
assert torch.equal(p.mean, network(x))  # the network's own answer, to the bit
lower, upper = p.interval(0.95)

# %%
# **What comes out**: the 95 % interval is narrow at the rows and opens in the gap and outside. The novelty
# rank is the share of familiar rows that are less novel; a row is called novel when it is more so than 99 %
# of them.
figure, (above, below) = pyplot.subplots(
    2, sharex=True, height_ratios=[3, 1], figsize=(8, 4.5), layout="constrained"
)
above.plot(x, torch.sin(2 * x) + 0.3 * x, "k--", lw=1, label="truth")
above.plot(inputs, targets, ".", color="grey", ms=3, label="training rows")
above.plot(x, p.mean, label="network")
above.fill_between(x[:, 0], lower[:, 0], upper[:, 0], alpha=0.25, label="95 % interval")
above.set(ylim=(-4, 4), title="A network's answer and how far it can be trusted")
above.legend(loc="upper left", ncols=2, fontsize="small")
below.plot(x, p.novelty_rank, color="tab:red")
below.fill_between(x[:, 0], 0, p.is_novel, color="tab:red", alpha=0.15, lw=0, label="called novel")
below.set(xlabel="input", ylabel="novelty rank", ylim=(0, 1.05))
below.legend(loc="center", fontsize="small")

# %%
# How often does the interval hold the target, on new rows like the training rows?
test_inputs, test_targets = draw(2000, seed=2)
lower, upper = model.predict(test_inputs).interval(0.95)
print(f"{((lower <= test_targets) & (test_targets <= upper)).float().mean():.1%} within the 95 % interval")

# %%
# **When not to use it.** The interval is a statistical statement about rows like those held out. In the gap
# it is a guess from what the network could have learnt, and only its growth is to be relied on. If you need a
# guarantee for every row, this is not one. If you have no trained network but a few hundred rows of a few
# numbers, a plain Gaussian process is simpler and better.
