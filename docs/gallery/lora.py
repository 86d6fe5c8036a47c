"""LoRA adapters

A frozen transformer is adapted to a task by a few small matrices. trustgp takes the gradients of parameters
that require one: the adapters and the head, not the millions of frozen weights.
"""

# %%
# **A model with adapters.** `W x` becomes `W x + B A x`, and only A and B are trained. With
# peft, which is not run here: `get_peft_model(bert, LoraConfig(r=4, target_modules=["q_lin", "v_lin"]))`.
import torch
from torch import nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import trustgp


class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base, self.a = base, nn.Linear(base.in_features, rank, bias=False)
        self.b = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


torch.manual_seed(0)
config = DistilBertConfig(vocab_size=60, dim=32, hidden_dim=64, n_layers=2, n_heads=2, num_labels=2)
bert = DistilBertForSequenceClassification(config)  # yours: .from_pretrained(...)
bert.distilbert.requires_grad_(False)
for block in bert.distilbert.transformer.layer:
    block.attention.q_lin, block.attention.v_lin = map(LoRA, (block.attention.q_lin, block.attention.v_lin))

# %%
# **The task**: does a sentence of eight words have more words below 20 than above? Words from 40 on are new.
words = torch.randint(1, 40, (700, 8))
rows = {
    "input_ids": words,
    "attention_mask": torch.ones_like(words),
    "labels": ((words < 20).sum(1) > 4).long(),
}
train, validation, test = (
    {k: v[part] for k, v in rows.items()} for part in (slice(400), slice(400, 550), slice(550, None))
)
optimiser = torch.optim.Adam([p for p in bert.parameters() if p.requires_grad], 1e-2)
for _ in range(60):
    optimiser.zero_grad()
    bert(**train).loss.backward()
    optimiser.step()
bert.eval()

# %%
model = trustgp.fit(bert, train, validation=validation, likelihood=trustgp.Classification(), progress=False)
names = model.mixtures[0].tangents.network.names
print(f"{len(names)} of {len(list(bert.parameters()))} parameters, such as {names[0]}")
print(trustgp.evaluate(model, test, ood={**test, "input_ids": test["input_ids"] % 20 + 40}, progress=False))

# %%
# **When not to use it.** Adapters that are merged into their layers are no parameters of their own: pass the
# names of these layers, `tangents=[...]`. All parameters: call `requires_grad_(True)` before the fit.
