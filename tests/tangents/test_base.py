import pytest
import torch

from trustgp.tangents import KINDS, output_mixes


def test_shared_outputs_are_one_kernel_for_all(generator):
    ((mix, served),) = output_mixes("shared", 3, generator)
    torch.testing.assert_close(mix, torch.eye(3, dtype=torch.float64) / 3**0.5, rtol=1e-10, atol=0)
    assert served.tolist() == [0, 1, 2]


def test_separate_outputs_are_a_kernel_each(generator):
    mixes = output_mixes("separate", 3, generator)
    assert [served.tolist() for _, served in mixes] == [[0], [1], [2]]
    assert torch.equal(torch.cat([mix for mix, _ in mixes]), torch.eye(3, dtype=torch.float64))


def test_pseudo_output_is_one_unit_vector(generator):
    ((mix, served),) = output_mixes("pseudo", 5, generator)
    assert mix.shape == (1, 5)
    assert float(mix.square().sum()) == pytest.approx(1.0, rel=1e-10)
    assert served.tolist() == [0, 1, 2, 3, 4]


def test_one_output_is_the_same_kernel_in_every_way_but_sign(generator):
    mixes = [output_mixes(kind, 1, generator)[0][0].abs() for kind in ("shared", "separate", "pseudo")]
    assert all(torch.equal(mix, torch.ones(1, 1, dtype=torch.float64)) for mix in mixes)


def test_unknown_treatment_of_outputs_is_refused(generator):
    with pytest.raises(ValueError, match='"shared", "separate" and "pseudo"'):
        output_mixes("joint", 2, generator)


def test_every_representation_is_made_again_from_its_settings():
    for kind in KINDS.values():
        made = kind(parameters=["a", "b"])
        assert kind(**made.settings()).settings() == made.settings()
