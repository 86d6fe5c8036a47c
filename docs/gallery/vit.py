"""An image classifier from Hugging Face

A small vision transformer learns the digits 0 to 7. Then it gets eights and nines, and negatives, which are
none of its classes.
"""

# %%
# The images come with scikit-learn, the network has random initial weights: nothing is downloaded. Yours
# comes from `ViTForImageClassification.from_pretrained`.
import torch
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

import trustgp
from trustgp.plots import figure

digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
known, foreign = labels < 8, images[labels >= 8]
images, labels = images[known], labels[known]
train, held_out, test = ((images[s], labels[s]) for s in (slice(800), slice(800, 1100), slice(1100, None)))

torch.manual_seed(0)
config = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, num_labels=8,
)  # fmt: skip
vit = ViTForImageClassification(config)
optimiser = torch.optim.Adam(vit.parameters(), 3e-3)
for _ in range(300):
    rows = torch.randint(0, 800, (64,))
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(vit(train[0][rows]).logits, train[1][rows]).backward()
    optimiser.step()
vit.eval()

# %%
# **The fit.** The network returns an object, whose `logits` are the outputs.
model = trustgp.fit(vit, train, validation=held_out, likelihood="classification", progress=False)
print(trustgp.evaluate(model, test, ood=1 - test[0], progress=False))

# %%
# **The least and the most novel** images, with their class, the confidence of the network's softmax, and
# that of trustgp.
every = torch.cat([test[0], foreign, 1 - test[0][:100]])
p = model.predict(every)
order = p.score.argsort()
with figure("least_novel_above_most_novel_below.png", width=8, height=2.9) as page:
    for axes, row in zip(page.subplots(2, 8).flat, [*order[:8], *order[-8:]], strict=True):
        axes.imshow(every[row, 0], cmap="gray_r", vmin=0, vmax=1)
        softmax, averaged = p.mean[row].softmax(0).max(), p.probabilities[row].max()
        axes.set_title(f"{p.classes[row]}: {softmax:.2f} → {averaged:.2f}", fontsize=8)
        axes.set_axis_off()

# %%
# **When not to use it.** An image that the network treats like a known class is not novel to it. Eights and
# nines have the strokes of other digits, and the entropy of the probabilities detects them at least as well
# as the novelty score ([measured](../../experiments/docs/classes.md)). For a large transformer begin with
# `tangents="last"`, and see [what it costs](../networks.md#large-networks).
