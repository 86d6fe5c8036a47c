"""A vision transformer

A small ViT of Hugging Face learns the digits 0 to 7 from pictures of 8 x 8 pixels. Then it is shown eights
and nines, which it has never seen and must call something else: a hard case of novelty, for they are made of
the same strokes.
"""

# %%
# The pictures come with scikit-learn, the network is made from a configuration: nothing is downloaded. Yours
# would come from `ViTForImageClassification.from_pretrained`.
import torch
from matplotlib import pyplot
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

import trustgp

digits = load_digits()
images, labels = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target)
known, foreign = labels < 8, images[labels >= 8]
images, labels = images[known], labels[known]
train, validation, test = (
    (images[part], labels[part]) for part in (slice(800), slice(800, 1100), slice(1100, None))
)

# %%
torch.manual_seed(0)
vit = ViTForImageClassification(
    ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=64, num_labels=8,
    )
)  # fmt: skip
optimiser, generator = torch.optim.Adam(vit.parameters(), 3e-3), torch.Generator().manual_seed(0)
for _ in range(300):
    rows = torch.randint(0, 800, (64,), generator=generator)
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(vit(train[0][rows]).logits, train[1][rows]).backward()
    optimiser.step()
vit.eval()

# %%
# **The fit.** The model returns an object, whose `logits` count. Nothing else is special about a
# transformer: its layers are not known in closed form, so `fit` sketches its gradients.
model = trustgp.fit(
    vit,
    train,
    validation=validation,
    likelihood=trustgp.Classification(),
    progress=False,
)
print("tangents:", model.origin.tangents)
print(trustgp.evaluate(model, test, ood=foreign, progress=False))

# %%
# **The least and the most novel** of the known digits and the foreign ones, with the class that the network
# gives and how sure it is before and after.
both = torch.cat([test[0], foreign])
p = model.predict(both)
bold = p.mean.softmax(1).amax(1)
order = p.score.argsort()
picked = torch.cat([order[:8], order[-8:]])
figure, axes = pyplot.subplots(2, 8, figsize=(10, 3.4), layout="constrained")
figure.suptitle("Least novel above, most novel below: class, softmax → cooled")
for axis, row in zip(axes.flat, picked.tolist(), strict=True):
    axis.imshow(both[row, 0], cmap="gray_r")
    axis.set_title(f"{int(p.classes[row])}: {bold[row]:.2f} → {p.probabilities[row].max():.2f}", fontsize=8)
    axis.set_axis_off()

# %%
# **When not to use it.** A foreign picture that the network treats like a known class is not novel to it. In
# the table the plain entropy of the probabilities tells eights and nines at least as well as the novelty
# score; the score is for pictures that are farther off ([measured](../../experiments/docs/classes.md)). For
# a large ViT start with `tangents=trustgp.Sketch(1024, parameters="last")`, which needs no backward pass
# through the body, and see [what it costs](../networks.md#large-networks).
