"""Text, with a Hugging Face model

DistilBERT, small and from a configuration, learns which of three subjects a sentence is about. Sentences in
words that it has never read are answered as boldly as any; trustgp tells them apart.
"""

# %%
# **Sentences** of made-up words, as a tokeniser gives them: word numbers and a mask, in a dict. Each subject
# has words of its own, some words belong to none, and the last twenty stand in no training sentence.
import torch
from matplotlib import pyplot
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import trustgp

OWN, COMMON, UNSEEN, LENGTH = 12, 20, 20, 14  # words of each subject, of none, never read; of a sentence
KNOWN = 1 + 3 * OWN + COMMON  # word 0 is padding


def sentences(count, seed, unseen=0.0):
    """`unseen`: the share of words that were never read."""
    generator = torch.Generator().manual_seed(seed)
    subject = torch.randint(0, 3, (count,), generator=generator)
    own, common, new = (
        first + torch.randint(0, size, (count, LENGTH), generator=generator)
        for first, size in ((1 + OWN * subject[:, None], OWN), (1 + 3 * OWN, COMMON), (KNOWN, UNSEEN))
    )
    words = torch.where(torch.rand(count, LENGTH, generator=generator) < 0.25, own, common)
    words = torch.where(torch.rand(count, LENGTH, generator=generator) < unseen, new, words)
    mask = (torch.arange(LENGTH) < torch.randint(5, LENGTH + 1, (count, 1), generator=generator)).long()
    return {"input_ids": words * mask, "attention_mask": mask}, subject


# %%
config = DistilBertConfig(
    vocab_size=KNOWN + UNSEEN, dim=32, hidden_dim=64, n_layers=2, n_heads=2, max_position_embeddings=LENGTH,
    num_labels=3,
)  # fmt: skip
torch.manual_seed(0)
reader = DistilBertForSequenceClassification(config)  # yours: .from_pretrained(...)
inputs, labels = sentences(900, seed=0)
optimiser, generator = torch.optim.Adam(reader.parameters(), 2e-3), torch.Generator().manual_seed(0)
for _ in range(200):
    rows = torch.randint(0, 900, (64,), generator=generator)
    batch = {name: value[rows] for name, value in inputs.items()}
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(reader(**batch).logits, labels[rows]).backward()
    optimiser.step()
reader.eval()

# %%
# **The fit** takes the dict as it is, and `output` says which tensor of the model's answer counts.
model = trustgp.fit(
    reader,
    (inputs, labels),
    validation=sentences(300, seed=1),
    likelihood=trustgp.Classification(),
    output=lambda result: result.logits,
    progress=False,
)
model.threshold(false_alarm=0.05)

# %%
# **More and more new words.** How sure is the network, how sure should it be, and how often is it right?
shares, lines = torch.linspace(0, 1, 6), {"softmax": [], "cooled": [], "right": [], "flagged as new": []}
for share in shares:
    test, truth = sentences(400, seed=2, unseen=float(share))
    p = model.predict(test)
    values = (p.mean.softmax(1).amax(1), p.probabilities.amax(1), p.classes == truth, p.is_novel)
    for line, value in zip(lines.values(), values, strict=True):
        line.append(float(value.float().mean()))
print("\n".join(f"{name:15}" + " ".join(f"{value:5.0%}" for value in line) for name, line in lines.items()))
figure, axes = pyplot.subplots(figsize=(8, 3.4), layout="constrained")
for name, line in lines.items():
    axes.plot(shares, line, "o-", label=name)
axes.set(xlabel="share of words that were never read", ylim=(0, 1.02), title="Sure, cooled, right, flagged")
axes.legend(fontsize="small")

# %%
# **When not to use it.** It judges the model's gradients, not meaning: a sentence of known words that says
# something new is familiar. Words that the tokeniser splits into known pieces are less new than these.
# `examples/transformer_regression.py` in the repository does the same for a number instead of a class.
