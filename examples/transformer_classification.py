"""Which answers of a Hugging Face text classifier to trust: cooled probabilities, and sentences that are new.

    python examples/transformer_classification.py [--sentences 900] [--hidden 32] [--steps 200]

Needs `transformers` (pip install "trustgp[hf]"). The model is DistilBERT's architecture, small, from a
configuration: nothing is downloaded. It learns which of three subjects a sentence of made-up words is about;
each subject has words of its own, and some words belong to none. Sentences in words that were never seen are
answered as boldly by the network, and told apart by the novelty score.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import trustgp

SUBJECTS, OWN, COMMON, UNSEEN = 3, 12, 20, 20  # words of each subject, of none, and of no training sentence
KNOWN = 1 + SUBJECTS * OWN + COMMON  # word 0 is padding
LENGTH = 14


def logits(result: Any) -> Tensor:
    """The output that counts."""
    return result.logits


def sentences(count: int, seed: int, *, unseen: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """Word numbers and masks [n, LENGTH], and the subject of each sentence [n]."""
    generator = torch.Generator().manual_seed(seed)
    subject = torch.randint(0, SUBJECTS, (count,), generator=generator)
    own = 1 + OWN * subject[:, None] + torch.randint(0, OWN, (count, LENGTH), generator=generator)
    common = 1 + SUBJECTS * OWN + torch.randint(0, COMMON, (count, LENGTH), generator=generator)
    tokens = torch.where(torch.rand(count, LENGTH, generator=generator) < 0.25, own, common)
    if unseen:
        tokens = KNOWN + torch.randint(0, UNSEEN, (count, LENGTH), generator=generator)
    lengths = torch.randint(5, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}, subject


def network(hidden: int) -> torch.nn.Module:
    """DistilBERT with one logit for each subject, random weights."""
    try:
        from transformers import DistilBertConfig, DistilBertForSequenceClassification
    except ImportError as error:
        raise SystemExit('this example needs transformers: pip install "trustgp[hf]"') from error
    config = DistilBertConfig(
        vocab_size=KNOWN + UNSEEN,
        dim=hidden,
        hidden_dim=2 * hidden,
        n_layers=2,
        n_heads=2,
        max_position_embeddings=LENGTH,
        num_labels=SUBJECTS,
    )
    return DistilBertForSequenceClassification(config)


def trained(model: torch.nn.Module, inputs: dict[str, Tensor], labels: Tensor, steps: int) -> torch.nn.Module:
    """A few steps of Adam."""
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        index = torch.randint(0, len(labels), (64,), generator=generator)
        batch = {name: value[index] for name, value in inputs.items()}
        loss = F.cross_entropy(logits(model(**batch)), labels[index])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def main(arguments: list[str] | None = None) -> trustgp.UncertaintyModel:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=900)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args(arguments)

    inputs, labels = sentences(options.sentences, seed=0)
    validation = sentences(max(60, options.sentences // 3), seed=1)
    torch.manual_seed(0)
    reader = trained(network(options.hidden), inputs, labels, options.steps)

    model = trustgp.fit(
        reader,
        (inputs, labels),
        likelihood=trustgp.Classification(),
        validation=validation,
        output=logits,
    )
    print(f"tangents: {model.origin.tangents}")
    model.threshold(false_alarm=0.05)
    for name, unseen in (("known words", False), ("new words", True)):
        test, _ = sentences(200, seed=2, unseen=unseen)
        p = model.predict(test)
        bold, ours = p.mean.softmax(dim=1).amax(dim=1).mean(), p.probabilities.amax(dim=1).mean()
        print(
            f"{name:11}: the network is sure of {bold:.0%}, cooled {ours:.0%}; novelty "
            f"{float(p.novelty.mean()):.2f}, {float(p.is_novel.double().mean()):.0%} flagged as new"
        )
    return model


if __name__ == "__main__":
    main()
