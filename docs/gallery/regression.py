"""A curve with a gap

Start here: a network learns a noisy curve from rows with a gap in the middle, and trustgp adds an interval
and a novelty. The network itself does not change.
"""

# %%
# **The network** is any trained `torch.nn.Module`. It has no training rows between 0 and 1.5 or beyond ±3.
import torch
from torch import nn

import trustgp
from trustgp.plots import GREY, INK, ORANGE, draw_band, figure


def truth(x):
    return torch.sin(2 * x) + 0.3 * x


def draw(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 1, generator=generator) * 4.5 - 3
    x = torch.where(x > 0, x + 1.5, x)
    return x, truth(x) + 0.1 * torch.randn(n, 1, generator=generator)


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
half = p.interval(0.95)[1] - p.mean

# %%
# **The result.** The 95 % interval is narrow at the rows and opens in the gap and outside. The novelty rank
# is the share of held-out rows that are less novel; an input is novel when it exceeds 99 % of them.
with figure("the_interval_opens_where_there_are_no_rows.png", width=8, height=4.5) as page:
    above, below = page.subplots(2, sharex=True, height_ratios=[3, 1])
    draw_band(above, x[:, 0], p.mean[:, 0], half[:, 0], label="95 % interval", line="network")
    above.plot(x, truth(x), "--", color=INK, lw=1, label="truth")
    above.plot(inputs, targets, ".", color=GREY, ms=3, label="training rows")
    above.set(ylim=(-4, 4), ylabel="target")
    below.fill_between(x[:, 0], 0, p.is_novel, color=ORANGE, alpha=0.25, lw=0, label="novel")
    below.plot(x, p.novelty_rank, color=ORANGE, label="novelty rank")
    below.set(xlabel="input", ylabel="novelty rank", ylim=(0, 1.05))
    page.legend(loc="outside upper center", ncols=6)

# %%
# **When not to use it.** As a guarantee: the interval is a statistical statement about rows like those held
# out. In the gap its size is an extrapolation of the linearised network.
