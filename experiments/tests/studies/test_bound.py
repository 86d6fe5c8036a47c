"""The bound study: shares of the kernel on a tiny network, and a small run."""

import pytest
import torch

from trustgp.experts.gate import Division
from trustgp_experiments.studies.bound import study as bound
from trustgp_experiments.studies.bound.study import centred, shares_of


def test_the_centred_kernel_is_that_of_features_less_their_mean(generator):
    features = torch.randn(15, 4, generator=generator, dtype=torch.float64) + 3.0
    rest = features - features.mean(0)
    torch.testing.assert_close(centred(features @ features.T), rest @ rest.T, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def shares(case):
    return shares_of(case.network, (case.inputs, case.targets), (2, 5), (1, 3), seed=0)


def test_ours_is_what_fit_reports_and_a_random_division_leaves_more_between_experts(shares, fit_case):
    assert [(entry["components"], entry["asked"]) for entry in shares] == [(1, 2), (1, 5), (3, 2), (3, 5)]
    for entry in shares:
        assert entry["kernel"]["ours"] == pytest.approx(entry["reported"], rel=1e-10)
        assert entry["kernel"]["ours"] < entry["kernel"]["random"]
    model = fit_case(num_experts=5, division=Division(components=3), budget="none")
    assert shares[-1]["experts"] == model.num_experts
    assert shares[-1]["reported"] == pytest.approx(float(model.bound), rel=1e-10)


def test_a_random_division_has_experts_of_the_same_sizes(case, monkeypatch):
    labels = []
    monkeypatch.setattr(bound, "mass_between", lambda gram, own, n: labels.append(own) or 0.0)
    shares_of(case.network, (case.inputs, case.targets), (5,), (3,), seed=0)
    ours, random = labels[:2]
    assert torch.equal(ours.bincount(), random.bincount())
    assert not torch.equal(ours, random)


def test_a_subset_comes_near_the_exact_share(case, shares, monkeypatch):
    monkeypatch.setattr(bound, "EXACT_ROWS", 100)
    sampled = shares_of(case.network, (case.inputs, case.targets), (2, 5), (1, 3), seed=0)
    for part, whole in zip(sampled, shares, strict=True):
        assert part["experts"] == whole["experts"]
        assert part["kernel"]["ours"] == pytest.approx(whole["kernel"]["ours"], abs=0.05)


def test_more_experts_lose_more_of_the_kernel_and_ours_less_than_random_ones(small_run):
    result = small_run("bound")[1]
    for runs in result.numbers["seeds"].values():
        entries = [entry["kernel"] for entry in runs[0]["shares"]]
        assert all(entry["ours"] < entry["random"] for entry in entries)
        assert [entry["ours"] for entry in entries] == sorted(entry["ours"] for entry in entries)
    assert result.provenance["data"] == {"toy": "snelson_like", "arm": "arm_slow"}
    assert [table.title.split(": ")[1] for table in result.tables] == ["toy (1-D)", "arm (21-D)"]
    first = result.numbers["seeds"]["arm"][0]["shares"][0]["kernel"]
    assert f"{first['ours']:.2f}" in result.findings[1]
