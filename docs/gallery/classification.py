"""A classifier that knows what it does not know

A network that tells three classes apart is sure of itself everywhere, also where it has never seen a row.
trustgp keeps its answer, cools its probabilities where little is known, and says which rows are foreign.
"""

# %%
import torch
from matplotlib import pyplot
from torch import nn

import trustgp


def draw(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    centres = torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])
    return centres[labels] + 0.7 * torch.randn(n, 2, generator=generator), labels


train, validation, test = draw(600, 0), draw(600, 1), draw(1000, 2)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(300):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(train[0]), train[1]).backward()
    optimiser.step()
network.eval()

# %%
# **One more word in the call**: the targets are class numbers.
model = trustgp.fit(
    network, train, likelihood=trustgp.Classification(), validation=validation, progress=False
)
p = model.predict(test[0])
assert torch.equal(p.classes, network(test[0]).argmax(1))  # the predicted class never changes
print(trustgp.evaluate(model, test, ood=test[0] + 6, progress=False))

# %%
# **The whole plane.** On the left the network's own confidence: it grows away from the data. In the middle
# the cooled one, on the right the share of familiar rows that are less novel, with the border beyond which
# rows are called novel.
side = torch.linspace(-8, 8, 120)
plane = torch.cartesian_prod(side, side)
p = model.predict(plane)
panels = {
    "softmax of the network": network(plane).softmax(1).amax(1),
    "cooled by trustgp": p.probabilities.amax(1),
    "novelty rank": p.novelty_rank,
}
figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
for axis, (title, values) in zip(axes, panels.items(), strict=True):
    shown = axis.pcolormesh(side, side, values.detach().view(120, 120).T, vmin=0, vmax=1, rasterized=True)
    axis.scatter(*train[0].T, c=train[1], cmap="autumn", s=2)
    axis.set(title=title, aspect="equal")
axes[2].contour(side, side, p.is_novel.view(120, 120).T.float(), [0.5], colors="white", linewidths=1)
figure.colorbar(shown, ax=axes, shrink=0.8)

# %%
# **When not to use it.** Where a label is simply ambiguous, cooling changes little: that is in the softmax
# already. If all you want is better calibrated probabilities on familiar rows, temperature scaling does
# nearly as well and costs nothing. Pass validation rows: without them the probabilities stay too sure.
