"""The second part of a detector with layers that show what they were given."""

import torch
from torch import nn

from trustgp.detection.detector import ClassTail, DecoderTail, ZeroAttention, first_of, of_query


class Sum(nn.Module):
    """Twelve arguments, each weighted by its place, and one by name."""

    def forward(self, *arguments, scale):
        return scale * sum((place + 1) * value for place, value in enumerate(arguments)), None


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_arguments_keep_their_places_and_constants_are_those_of_the_query():
    own, constant, query = draw(3, 1, 4), draw(1, 5, 4), torch.tensor([4, 0, 2])
    names = [f"argument{place}" for place in range(12)]  # "argument10" comes before "argument2" as text
    entering = {name: (place + 1.0) * own for place, name in enumerate(names) if place != 2}
    tail = DecoderTail(Sum(), None, 0, {"scale": 2.0}, {"argument2": constant}, frozenset(names))
    weights = sum((place + 1) ** 2 for place in range(12) if place != 2)
    expected = 2.0 * (weights * own[:, 0] + 3.0 * constant[0, query])
    torch.testing.assert_close(tail(query, entering), expected, rtol=1e-12, atol=1e-12)


def test_a_layer_that_takes_all_queries_gives_the_one_that_is_meant_normalised_as_often_as_told():
    hidden, query = draw(3, 5, 4), torch.tensor([4, 0, 2])
    norm = nn.LayerNorm(4).double()
    tail = DecoderTail(nn.Identity(), norm, 2, {}, {}, frozenset())
    found = tail(query, {"argument0": hidden})
    torch.testing.assert_close(found, norm(norm(hidden))[torch.arange(3), query], rtol=1e-12, atol=1e-12)
    assert torch.equal(of_query(hidden, query), hidden[torch.arange(3), query])


def test_attention_that_was_added_before_gives_zeros_in_the_form_of_its_answer():
    hidden = draw(2, 5, 4)
    for like in (hidden, (hidden,), (hidden, None, None)):
        found = ZeroAttention(like)(hidden, mask=None)
        assert type(found) is type(like)
        assert not first_of(found).any()
        assert isinstance(like, torch.Tensor) or len(found) == len(like)


def test_logits_add_up_to_the_odds_of_an_object_and_probabilities_stay():
    class Given(nn.Module):
        def forward(self, query, entering):
            return entering["logits"]

    logits, query = 3 * draw(7, 4), torch.zeros(7, dtype=torch.int64)
    for background in (False, True):
        found = ClassTail(Given(), nn.Identity(), background=background)(query, logits=logits)
        whole = nn.functional.pad(logits, (0, 1)) if background else logits
        torch.testing.assert_close(found.softmax(1), whole.softmax(1), rtol=1e-12, atol=1e-14)
        p = whole.softmax(1)
        odds = (p[:, :-1].sum(1) / p[:, -1]).log()
        torch.testing.assert_close(found.sum(1), odds, rtol=1e-10, atol=1e-10)
