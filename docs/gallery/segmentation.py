"""Segmentation: a class for each pixel

A convolutional network separates bright discs from the background. `fit` takes labels [n, H, W] as the loss
does; `predict` returns probabilities [n, K, H, W], and a novelty score for each pixel.
"""

# %%
# **Images** with discs. Pixels at the border have no label: 255 (or -100).
import torch
from torch import nn

import trustgp


def pictures(count, seed):
    generator = torch.Generator().manual_seed(seed)
    centres = 6 + 20 * torch.rand(count, 3, 2, 1, 1, generator=generator)
    grid = torch.stack(torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij"))
    labels = ((grid - centres).square().sum(2) < 16).any(1).long()
    images = labels[:, None] + 0.6 * torch.randn(count, 1, 32, 32, generator=generator)
    labels[:, 0] = 255
    return images, labels


torch.manual_seed(0)
first, second, last = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 8, 5, padding=2), nn.Conv2d(8, 2, 1)
network = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)
images, labels = pictures(30, seed=0)
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(60):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(images), labels, ignore_index=255).backward()
    optimiser.step()
network.eval()

# %%
held_out = pictures(20, seed=1)
model = trustgp.fit(
    network, (images, labels), validation=held_out, likelihood="classification", progress=False
)
print(model)

# %%
# **An image with something else in it**: the square is darker than anything in the training images.
test = pictures(1, seed=2)[0]
test[:, :, 20:28, 4:12] = -4.0
p = model.predict(test)
panels = {"image": test[0, 0], "probability of a disc": p.probabilities[0, 1], "novelty score": p.score[0]}
with trustgp.plots.figure("a_dark_square_is_novel.png", width=9, height=2.8) as page:
    for axes, (name, values) in zip(page.subplots(1, 3), panels.items(), strict=True):
        page.colorbar(axes.imshow(values, cmap="cividis"), ax=axes)
        axes.set(title=name, xticks=[], yticks=[])

# %%
# **When not to use it.** The features of a pixel are the inputs of the last layer there: a change that the
# layers before remove has no effect. Positions are predicted independently: there is no covariance between
# pixels.
