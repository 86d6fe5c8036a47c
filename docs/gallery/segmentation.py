"""Segmentation: a class for each pixel

A small convolutional network tells bright discs from the background. `fit` takes labels [n, H, W] as the loss
does, and `predict` returns probabilities [n, K, H, W], and a novelty score for each pixel.
"""

# %%
# **Pictures** with discs. Pixels at the border have no label, 255 (or -100).
import torch
from matplotlib import pyplot
from torch import nn

import trustgp


def pictures(count, seed):
    generator = torch.Generator().manual_seed(seed)
    at = 6 + 20 * torch.rand(count, 3, 2, 1, 1, generator=generator)
    grid = torch.stack(torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij"))
    labels = ((grid - at).square().sum(2) < 16).any(1).long()
    images = labels[:, None] + 0.6 * torch.randn(count, 1, 32, 32, generator=generator)
    labels[:, 0] = 255
    return images, labels


torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 2, 1)
)
images, labels = pictures(30, seed=0)
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(60):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(images), labels, ignore_index=255).backward()
    optimiser.step()
network.eval()

# %%
model = trustgp.fit(
    network, (images, labels), validation=pictures(20, seed=1), likelihood="classification", progress=False
)
print(model)

# %%
# **A picture with something else in it**: the square is darker than anything in the training pictures.
test = pictures(1, seed=2)[0]
test[:, :, 20:28, 4:12] = -4.0
p = model.predict(test)
figure, axes = pyplot.subplots(1, 3, figsize=(9, 3), layout="constrained")
shown = {"picture": test[:, 0], "probability of a disc": p.probabilities[:, 1], "score": p.score}
for axis, (name, value) in zip(axes, shown.items(), strict=True):
    axis.imshow(value[0], cmap="gray")
    axis.set(title=name, xticks=[], yticks=[])

# %%
# **When not to use it.** The features of a pixel are what the last layer is given there: a change that the
# layers before do not pass on is not noticed. Positions are predicted independently: there is no covariance
# between pixels.
