"""A curve with a gap

Start here: a small network learns a noisy curve from rows with a gap in the middle, and trustgp adds an
interval and a novelty. The network itself is not changed.
"""

# %%
# **The network** is any trained `torch.nn.Module`. It has no training rows between 0 and 1.5 or beyond ±3.
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
# **One call.** The size of the error bar is fitted to the validation rows, which are new to the network.
model = trustgp.fit(network, (inputs, targets), validation=draw(100, seed=1), progress=False)

x = torch.linspace(-4.5, 4.5, 400)[:, None]
p = model.predict(x)
assert torch.equal(p.mean, network(x))  # the network's own output, to the bit
lower, upper = p.interval(0.95)

# %%
# **The result**: the 95 % interval is narrow at the rows and opens in the gap and outside. The novelty rank
# is the share of held-out rows that are less novel; a row is novel when it exceeds 99 % of them.
figure, (above, below) = pyplot.subplots(
    2, sharex=True, height_ratios=[3, 1], figsize=(8, 4.5), layout="constrained"
)
above.fill_between(x[:, 0], lower[:, 0], upper[:, 0], color="C0", alpha=0.25, lw=0, label="95 % interval")
above.plot(x, p.mean, color="C0", label="network")
above.plot(x, torch.sin(2 * x) + 0.3 * x, "k--", lw=1, label="truth")
above.plot(inputs, targets, ".", color="grey", ms=3, label="training rows")
above.set(ylim=(-4, 4), ylabel="target")
below.fill_between(x[:, 0], 0, p.is_novel, color="C1", alpha=0.25, lw=0, label="novel")
below.plot(x, p.novelty_rank, color="C1", label="novelty rank")
below.set(xlabel="input", ylabel="novelty rank", ylim=(0, 1.05))
figure.legend(loc="outside upper center", ncols=6, fontsize="small", frameon=False)

# %%
# How often does the interval cover the target, on new rows like the training rows?
test_inputs, test_targets = draw(2000, seed=2)
lower, upper = model.predict(test_inputs).interval(0.95)
print(f"{((lower <= test_targets) & (test_targets <= upper)).float().mean():.1%} within the 95 % interval")

# %%
# **When not to use it.** As a guarantee: the interval is a statistical statement about rows like those held
# out. In the gap its size is an extrapolation of the linearised network.
