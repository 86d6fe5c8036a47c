"""Five networks as one model

You have trained five networks for one task. Their disagreement is an error bar, but it has no noise and no
scale. `fit` takes the list: the prediction is the mean of the five, and their variance enters a calibrated
error bar.
"""

# %%
# **Five networks** with different initial weights. There are no training rows between 0 and 1.5.
import torch
from torch import nn

import trustgp
from trustgp.plots import GREY, INK, ORANGE, draw_band, figure


def draw(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator) * 4.5 - 3
    x = torch.where(x > 0, x + 1.5, x)
    return x, torch.sin(2 * x) + 0.3 * x + 0.1 * torch.randn(n, 1, generator=generator)


def trained(inputs, targets, seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(600):
        optimiser.zero_grad()
        (network(inputs) - targets).square().mean().backward()
        optimiser.step()
    return network.eval()


train = draw(300, seed=0)
networks = [trained(*train, seed) for seed in range(5)]

# %%
# **One call** with the list.
model = trustgp.fit(networks, train, validation=draw(100, seed=1), progress=False)

inputs, targets = draw(1000, seed=2)
std, mean = torch.std_mean(torch.stack([network(inputs) for network in networks]), dim=0)
lower, upper = model.predict(inputs).interval(0.95)
print(f"inside mean ± 1.96 std of the five: {((targets - mean).abs() < 1.96 * std).double().mean():.0%}")
print(f"inside the 95 % interval: {((lower < targets) & (targets < upper)).double().mean():.0%}")

# %%
x = torch.linspace(-4, 4, 400)[:, None]
p, outputs = model.predict(x), torch.stack([network(x) for network in networks])[:, :, 0]
std, mean = torch.std_mean(outputs, dim=0)
with figure("five_networks.png", width=8, height=3.4) as page:
    left, right = page.subplots(1, 2, sharey=True)
    draw_band(left, x[:, 0], mean, 1.96 * std, colour=ORANGE, label="disagreement of the five", line="mean")
    draw_band(right, x[:, 0], mean, (p.interval(0.95)[1] - p.mean)[:, 0], label="trustgp, 95 % interval")
    for axes in (left, right):
        axes.plot(*train, ".", color=GREY, ms=2)
        axes.plot(x, torch.sin(2 * x) + 0.3 * x, "--", color=INK, lw=1)
        axes.set(xlabel="input", ylim=(-4, 4))
    left.set_ylabel("target")
    page.legend(loc="outside upper center", ncols=3)

# %%
# **When not to use it.** A prediction costs five forward passes and the backward pass of one network. If
# that is too much, [one network](regression.md) with trustgp is enough for the error bar; five have the
# better mean.
