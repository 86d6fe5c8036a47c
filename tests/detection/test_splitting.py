"""A detector in two parts says what the whole says."""

from __future__ import annotations

import pytest
import torch
from detection.conftest import DETECTORS, pictures
from torch import nn

from trustgp.detection.detector import Detector


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_the_two_parts_give_what_the_whole_gives(name, alone):
    network, (images, _) = DETECTORS[name](), pictures(4)
    detector = Detector(network, alone=alone)
    tail, seen = detector.tail(images), detector(images)
    with torch.no_grad():
        whole = network(images)
    assert torch.equal(seen.logits, whole.logits)
    assert torch.equal(seen.boxes, whole.pred_boxes)
    assert bool(seen.each) == alone
    image, query = torch.tensor([0, 1, 1, 3]), torch.tensor([2, 0, 7, 5])
    rows = seen.rows([k for k in seen.entering if k not in tail.tail.alike], image, query)
    with torch.no_grad():
        logits = tail(**rows)
    said = whole.logits[image, query]
    if name == "conditional":  # each class is a yes or no: the odds stay when "no object" has the logit 0
        said = torch.cat([said, torch.zeros(4, 1)], dim=1)
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(logits.log_softmax(dim=1), said.log_softmax(dim=1), **close)
    odds = said[:, :2].exp().sum(dim=1).log() - said[:, 2]
    torch.testing.assert_close(logits.sum(dim=1), odds, **close)  # whose gradient the kernel is made of


def test_what_is_the_same_for_all_pictures_is_held_once():
    detector = Detector(DETECTORS["conditional"]())
    images, _ = pictures(3)
    tail = detector.tail(images)
    seen = detector(images)
    for name in tail.tail.alike:
        assert torch.equal(
            seen.entering[name], tail.tail.get_buffer(f"alike_{name}").expand_as(seen.entering[name])
        )
    assert 0 < len(tail.tail.alike) < len(seen.entering)


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_the_detector_is_left_as_it_was(name):
    network, (images, _) = DETECTORS[name](), pictures(2)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    detector = Detector(network)
    detector(images)
    detector.tail(images)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in network.modules())


def test_a_network_of_another_kind_is_refused():
    with pytest.raises(ValueError, match=r"a Linear, has no 'model.decoder.layers'"):
        Detector(nn.Linear(2, 2))


def test_a_row_takes_all_queries_where_they_cannot_be_told_from_the_memory():
    network, (images, _) = DETECTORS["plain"](), pictures(3)
    tokens = network(images).encoder_last_hidden_state.shape[1]
    network.model.query_position_embeddings = torch.nn.Embedding(tokens, network.config.d_model)
    network.config.num_queries = tokens
    detector = Detector(network)
    detector.tail(images)
    assert not detector.alone
    assert detector(images).each == frozenset()


def test_a_row_takes_all_queries_where_alone_it_gives_something_else():
    network, (images, _) = DETECTORS["conditional"](), pictures(3)
    # after they have looked at each other, queries do it once more
    network.model.decoder.layers[-1].self_attn_layer_norm.register_forward_hook(
        lambda module, given, found: 10 * (found - found.mean(dim=1, keepdim=True))
    )
    detector = Detector(network)
    detector.tail(images)
    assert not detector.alone


@pytest.mark.parametrize("name", sorted(DETECTORS))
def test_through_the_whole_detector_a_row_is_a_picture_and_says_the_same(name):
    network, (images, _) = DETECTORS[name](), pictures(3)
    detector = Detector(network, whole=True)
    tail, seen = detector.tail(images), detector(images)
    image, query = torch.tensor([0, 2, 2]), torch.tensor([1, 0, 7])
    rows = seen.rows(tuple(seen.entering), image, query)
    assert torch.equal(rows["picture"], images[image])
    plain = Detector(network)
    short = plain.tail(images)
    other = plain(images)
    own = other.rows([k for k in other.entering if k not in short.tail.alike], image, query)
    with torch.no_grad():
        torch.testing.assert_close(tail(**rows), short(**own), rtol=1e-4, atol=1e-4)
