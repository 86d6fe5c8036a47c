"""Text, with a Hugging Face model

DistilBERT, small and from a configuration, learns which of three subjects a sentence is about. `fit` takes
batches as the Trainer does: dicts with `labels`, each padded to its longest sentence. Sentences in words that
the model has never read are answered as boldly as any; trustgp tells them apart.
"""

# %%
# **Sentences** of made-up words, as a tokeniser gives them: one dict of word numbers a sentence, of any
# length. Each subject has words of its own, some words belong to none, and the last twenty are in no training
# sentence. The collator pads a batch, as `DataCollatorWithPadding(tokenizer)` does.
import torch
from matplotlib import pyplot
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
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
    lengths = torch.randint(5, LENGTH + 1, (count,), generator=generator).tolist()
    return [{"input_ids": w[:k], "labels": s} for w, k, s in zip(words, lengths, subject, strict=True)]


def collate(rows):
    words = pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {
        "input_ids": words,
        "attention_mask": (words > 0).long(),
        "labels": torch.stack([r["labels"] for r in rows]),
    }


def loader(rows, shuffle=False):
    return DataLoader(rows, batch_size=64, collate_fn=collate, shuffle=shuffle)


# %%
config = DistilBertConfig(
    vocab_size=KNOWN + UNSEEN, dim=32, hidden_dim=64, n_layers=2, n_heads=2, max_position_embeddings=LENGTH,
    num_labels=3,
)  # fmt: skip
torch.manual_seed(0)
reader = DistilBertForSequenceClassification(config)  # yours: .from_pretrained(...)
train = sentences(900, seed=0)
optimiser = torch.optim.Adam(reader.parameters(), 2e-3)
for _ in range(14):
    for batch in loader(train, shuffle=True):
        optimiser.zero_grad()
        reader(**batch).loss.backward()
        optimiser.step()
reader.eval()

# %%
# **The fit** takes the loaders as they are: `labels` are the targets, the model's `logits` its output.
model = trustgp.fit(
    reader,
    loader(train),
    validation=loader(sentences(300, seed=1)),
    likelihood=trustgp.Classification(),
    progress=False,
)
model.threshold(false_alarm=0.05)

# %%
# **More and more new words.** How sure is the network, how sure should it be, and how often is it right?
shares, lines = torch.linspace(0, 1, 6), {"softmax": [], "cooled": [], "right": [], "flagged as new": []}
for share in shares:
    test = sentences(400, seed=2, unseen=float(share))
    truth = torch.stack([row["labels"] for row in test])
    p = model.predict(loader(test))
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
