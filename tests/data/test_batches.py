"""Batches as Hugging Face gives them: labels inside, texts of different lengths, results with names."""

from collections import OrderedDict, UserDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import trustgp
from trustgp.data.batches import equal_lengths, split_targets
from trustgp.data.rows import read_rows


class Reader(nn.Module):
    """Mean of embedded words under a mask; like Hugging Face's, it returns a dict of results."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(12, 6), nn.Linear(6, outputs)
        self.config = SimpleNamespace(pad_token_id=11)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask[..., None].float()
        logits = self.last((self.words(input_ids) * mask).sum(dim=1) / mask.sum(dim=1))
        return OrderedDict(hidden=mask, logits=logits)


def batches(lengths=(5, 3, 7), size=20, left=False, pad=0):
    generator = torch.Generator().manual_seed(1)
    for length in lengths:
        words = torch.randint(1, 11, (size, length), generator=generator)
        mask = torch.ones_like(words)
        mask[0, 0 if left else -1] = 0
        labels = (words.float().mean(dim=1) > 5.5).long()
        yield UserDict(input_ids=torch.where(mask == 1, words, pad), attention_mask=mask, labels=labels)


def test_texts_are_padded_to_the_longest_and_read_as_the_network_reads_each_batch():
    network, each = Reader().eval(), list(batches())
    rows = read_rows(each, name="train", network=network)
    shapes = {name: tuple(x.shape) for name, x in rows.inputs.items()}
    assert shapes == dict.fromkeys(("input_ids", "attention_mask"), (60, 7))
    assert torch.equal(rows.targets.flatten(), torch.cat([batch["labels"] for batch in each]))
    apart = torch.cat([network(**batch)["logits"] for batch in each])
    torch.testing.assert_close(network(**rows.inputs)["logits"], apart, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("left", "pad"), [(False, 0), (True, 9)])
def test_padding_is_on_the_side_of_the_batches_and_with_their_word(left, pad):
    short, long = (split_targets(batch) for batch in batches((3, 5), left=left, pad=pad))
    (inputs, _), _ = equal_lengths([short, long])
    fresh = inputs["input_ids"][:, :2] if left else inputs["input_ids"][:, 3:]
    assert bool((fresh == pad).all())
    assert bool((inputs["attention_mask"].sum(dim=1) == short[0]["attention_mask"].sum(dim=1)).all())


def test_labels_of_words_are_padded_too_and_without_a_masked_word_the_network_names_it():
    pairs = [
        ({"input_ids": torch.ones(2, n).long(), "attention_mask": torch.ones(2, n)}, torch.ones(2, n).long())
        for n in (2, 4)
    ]
    (inputs, labels), _ = equal_lengths(pairs, Reader())
    assert labels.tolist() == [[1, 1, -100, -100]] * 2
    assert inputs["input_ids"][0].tolist() == [1, 1, 11, 11]


def test_lengths_that_differ_without_a_mask_are_refused():
    rows = [{"input_ids": torch.ones(2, n).long(), "labels": torch.zeros(2).long()} for n in (2, 3)]
    with pytest.raises(ValueError, match="batch 1 of train holds"):
        read_rows(rows, name="train")


def test_a_hugging_face_network_needs_neither_unpack_nor_output(tmp_path):
    network, path = Reader().eval(), tmp_path / "reader.trustgp"
    options = {"likelihood": trustgp.Classification(), "progress": False}
    model = trustgp.fit(network, batches((5, 3, 7)), validation=batches((4, 6)), **options)
    each = list(batches((4, 6, 9)))
    p = model.predict(each)
    assert torch.equal(p.mean, torch.cat([network(**batch)["logits"] for batch in each]))
    assert torch.equal(model.predict(each[0]).mean, p.mean[:20])
    model.save(path)
    again = trustgp.load(path, network)
    assert torch.equal(again.predict(each).probabilities, p.probabilities)
    assert trustgp.evaluate(model, each, ood=each, progress=False).auroc_score == 0.5
