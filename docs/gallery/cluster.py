"""Experts on a cluster

The experts of a fit are independent of each other, so they are solved in parallel: on threads, or on the
machines of a Ray cluster. The model is the same, to the bit.
"""

# %%
# **Something to fit**: a surface with 3,000 rows and 12 experts.
import torch
from matplotlib import pyplot
from torch import nn

import trustgp

generator = torch.Generator().manual_seed(0)
inputs = torch.rand(3000, 2, generator=generator) * 6 - 3
targets = (inputs[:, :1].sin() * inputs[:, 1:].cos()) + 0.05 * torch.randn(3000, 1, generator=generator)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(300):
    optimiser.zero_grad()
    (network(inputs) - targets).square().mean().backward()
    optimiser.step()
network.eval()
options = {"num_experts": 12, "progress": False}

# %%
# **On threads**, the default, and **on a Ray cluster**: without an address, Ray is started on this machine
# with two workers. On a cluster say `trustgp.executors.Ray("auto")`; nothing else changes.
local = trustgp.fit(network, (inputs, targets), **options)
remote = trustgp.fit(network, (inputs, targets), executor=trustgp.executors.Ray(workers=2), **options)
same = torch.equal(local.predict(inputs).variance, remote.predict(inputs).variance)
print(f"{remote.num_experts} experts; the same to the bit: {same}")

# %%
# **Who answers where**: each colour is an expert. On the right the standard deviation, also outside the
# square of the rows.
side = torch.linspace(-4, 4, 100)
plane = torch.cartesian_prod(side, side)
p = remote.predict(plane)
figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.9), layout="constrained", sharey=True)
axes[0].pcolormesh(side, side, p.expert.view(100, 100).T, cmap="tab20")
axes[0].set(title="The expert that answers", aspect="equal")
shown = axes[1].pcolormesh(side, side, p.std.view(100, 100).T, vmax=float(p.std.quantile(0.98)))
axes[1].set(title="Standard deviation", aspect="equal")
figure.colorbar(shown, ax=axes)

# %%
# **When not to use it.** A fit of a few thousand rows, as this one, is over sooner on threads than a worker
# is started. A cluster pays from hundreds of thousands of rows on, and first try one GPU: [two million rows
# take 15 seconds](../large.md#time) there. Anyone who reaches Ray's ports can run code on its
# machines: keep them inside a network that you trust.
