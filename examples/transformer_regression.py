"""An error bar for a Hugging Face transformer: from a sentence to a number.

    python examples/transformer_regression.py [--sentences 600] [--hidden 32] [--steps 150]

Needs `transformers` (pip install "trustgp[hf]"). The model is BERT's architecture, small, from a
configuration: nothing is downloaded. It learns how positive a sentence of made-up words is. It takes a dict
and returns an object, whose `logits` count.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import trustgp

WORDS, LENGTH = 60, 12  # of the language, and of the longest sentence; word 0 is padding
KNOWN = 40  # words that the training sentences use


def sentences(count: int, words: range, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Word numbers and masks [n, LENGTH], and how positive each sentence is [n, 1]."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(words.start, words.stop, (count, LENGTH), generator=generator)
    lengths = torch.randint(4, LENGTH + 1, (count, 1), generator=generator)
    mask = (torch.arange(LENGTH) < lengths).long()
    tone = torch.linspace(-1, 1, WORDS)[torch.randperm(WORDS, generator=torch.Generator().manual_seed(9))]
    positive = (tone[tokens] * mask).sum(dim=1, keepdim=True) / lengths
    return {"input_ids": tokens * mask, "attention_mask": mask}, 3 * positive


def network(hidden: int) -> torch.nn.Module:
    """BERT with one output, random weights."""
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError as error:
        raise SystemExit('this example needs transformers: pip install "trustgp[hf]"') from error
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=LENGTH,
        num_labels=1,
    )
    return BertForSequenceClassification(config)


def trained(
    model: torch.nn.Module, inputs: dict[str, Tensor], targets: Tensor, steps: int
) -> torch.nn.Module:
    """A few steps of Adam."""
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        index = torch.randint(0, len(targets), (64,), generator=generator)
        batch = {name: value[index] for name, value in inputs.items()}
        loss = (model(**batch).logits - targets[index]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


def main(arguments: list[str] | None = None) -> trustgp.UncertaintyModel:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=600)
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args(arguments)

    inputs, targets = sentences(options.sentences, range(1, KNOWN), seed=0)
    validation = sentences(max(40, options.sentences // 5), range(1, KNOWN), seed=1)
    torch.manual_seed(0)
    bert = trained(network(options.hidden), inputs, targets, options.steps)

    model = trustgp.fit(bert, (inputs, targets), validation=validation)
    print(f"tangents: {model.origin.tangents}")
    for name, words in (("known words", range(1, KNOWN)), ("new words", range(KNOWN, WORDS))):
        test, truth = sentences(100, words, seed=2)
        p = model.predict(test)
        error = float((p.mean - truth).square().mean().sqrt())
        std, novelty = float(p.std.mean()), float(p.novelty.mean())
        print(f"{name:11}: error {error:.2f}, std {std:.2f}, novelty {novelty:.2f}")
    return model


if __name__ == "__main__":
    main()
