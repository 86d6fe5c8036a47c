"""A text classifier from Hugging Face

DistilBERT learns which of three subjects a sentence is about. A sentence in words that it was not trained on
is classified with the same confidence; trustgp flags it as novel. LoRA adapters of peft work in the same
way: the gradients are those of the parameters that are trained.
"""

# %%
# **Sentences**, as a tokeniser returns them: numbers of words, padded, with a mask. They are made up here:
# each subject has twelve words of its own, twenty words belong to no subject, and words from 57 on are in no
# training sentence.
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import trustgp
from trustgp.plots import BLUE, INK, ORANGE, RED, figure


def sentences(count, seed, new_words=0.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    own, common, new = torch.randint(0, 12, (3, count, 14), generator=generator)
    kind = torch.rand(2, count, 14, generator=generator)
    words = torch.where(kind[0] < 0.25, 1 + 12 * labels[:, None] + own, 37 + common)
    words = torch.where(kind[1] < new_words, 57 + new, words)
    mask = (torch.arange(14) < torch.randint(5, 15, (count, 1), generator=generator)).long()
    return {"input_ids": words * mask, "attention_mask": mask, "labels": labels}


train = sentences(600, seed=0)
config = DistilBertConfig(vocab_size=69, dim=32, hidden_dim=64, n_layers=2, n_heads=2, num_labels=3)
torch.manual_seed(0)
reader = DistilBertForSequenceClassification(config)  # yours: .from_pretrained(...)
optimiser = torch.optim.Adam(reader.parameters(), 2e-3)
for _ in range(80):
    optimiser.zero_grad()
    reader(**train).loss.backward()
    optimiser.step()

# %%
# **The fit** takes the batch as it is, or the loader of the Trainer: `labels` are the targets, the `logits`
# of the result the outputs.
held_out = sentences(300, seed=1)
model = trustgp.fit(reader.eval(), train, validation=held_out, likelihood="classification", progress=False)
model.threshold(false_alarm=0.05)

# %%
# **More and more new words**: how confident is the network, how confident is trustgp, and who is right?
shares, lines = torch.linspace(0, 1, 6), []
for share in shares.tolist():
    test = sentences(200, seed=2, new_words=share)
    p = model.predict(test)
    softmax, averaged = (each.amax(1).mean() for each in (p.mean.softmax(1), p.probabilities))
    lines.append([softmax, averaged, (p.classes == test["labels"]).float().mean(), p.is_novel.float().mean()])
with figure("confidence_accuracy_and_novelty_by_share_of_new_words.png", width=8, height=3.4) as page:
    axes, lines = page.subplots(), torch.tensor(lines)
    names = ("confidence, softmax", "confidence, trustgp", "accuracy", "flagged as novel")
    for name, line, colour, mark in zip(names, lines.T, (ORANGE, BLUE, INK, RED), "os^D", strict=True):
        axes.plot(shares, line, f"{mark}-", color=colour, label=name)
        print(f"{name:20}" + " ".join(f"{value:5.0%}" for value in line.tolist()))
    axes.set(xlabel="share of new words", ylabel="share, or mean probability", ylim=(0, 1.02))
    page.legend(loc="outside upper center", ncols=4)

# %%
# **When not to use it.** Novelty is that of the model's gradients, not of the meaning: a sentence of known
# words with a new meaning is familiar. Words that the tokeniser splits into known pieces are less novel than
# these.
