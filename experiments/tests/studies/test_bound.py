"""The bound study, small: on generated rows and the simulated arm, as on a machine without data."""

import sys

import pytest
import torch

from trustgp.experts.gate import Division
from trustgp_experiments.studies import run_study
from trustgp_experiments.studies.bound import study as bound_shares
from trustgp_experiments.studies.bound.study import centred, shares_of


def kernel(n, generator, *, mean=0.0):
    features = torch.randn(n, 4, generator=generator, dtype=torch.float64) + mean
    return features, features @ features.T


def test_the_centred_kernel_is_that_of_features_less_their_mean(generator):
    features, gram = kernel(15, generator, mean=3.0)
    rest = features - features.mean(0)
    torch.testing.assert_close(centred(gram), rest @ rest.T, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def shares(case):
    rows = case.inputs, case.targets
    return shares_of(case.network, rows, (2, 5), (1, 3), seed=0, progress=False)


def test_ours_is_what_fit_reports_where_all_pairs_are_counted(shares, fit_case):
    for entry in shares:
        assert entry["kernel"]["ours"] == pytest.approx(entry["reported"], rel=1e-10)
    model = fit_case(num_experts=5, division=Division(components=3), budget="none")
    last = shares[-1]
    assert (last["components"], last["asked"], last["experts"]) == (3, 5, model.num_experts)
    assert last["reported"] == pytest.approx(float(model.bound), rel=1e-10)


def test_a_random_division_leaves_more_between_experts(shares):
    assert [(entry["components"], entry["asked"]) for entry in shares] == [(1, 2), (1, 5), (3, 2), (3, 5)]
    assert all(entry["kernel"]["ours"] < entry["kernel"]["random"] for entry in shares)


def test_a_random_division_has_experts_of_the_same_sizes(case, monkeypatch):
    seen = []
    monkeypatch.setattr(bound_shares, "mass_between", lambda gram, labels, n: seen.append(labels) or 0.0)
    shares_of(case.network, (case.inputs, case.targets), (5,), (3,), seed=0, progress=False)
    ours, random = seen[:2]
    assert torch.equal(ours.bincount(), random.bincount())
    assert not torch.equal(ours, random)


def test_a_subset_comes_near_the_exact_share(case, shares, monkeypatch):
    monkeypatch.setattr(bound_shares, "EXACT", 100)
    some = shares_of(case.network, (case.inputs, case.targets), (2, 5), (1, 3), seed=0, progress=False)
    for part, whole in zip(some, shares, strict=True):
        assert part["experts"] == whole["experts"]
        assert part["kernel"]["ours"] == pytest.approx(whole["kernel"]["ours"], abs=0.05)


# --- the study -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Its folder and its result."""
    pytest.importorskip("matplotlib")
    out = tmp_path_factory.mktemp("bound")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRUSTGP_DATA", raising=False)
        return out, run_study("bound", out, quick=True, seeds=1)


def test_less_falls_between_our_experts_than_between_random_ones(quick):
    for runs in quick[1].numbers["seeds"].values():
        for run in runs:
            assert all(entry["kernel"]["ours"] < entry["kernel"]["random"] for entry in run["shares"])


def test_more_experts_lose_more_of_the_kernel(quick):
    for runs in quick[1].numbers["seeds"].values():
        shares = [entry["kernel"]["ours"] for entry in runs[0]["shares"]]
        assert shares == sorted(shares)


def test_the_result_says_what_it_was_made_from(quick):
    out, result = quick
    assert result.provenance["data"] == {"toy": "snelson_like", "arm": "arm_slow"}
    assert [table.title.split(": ")[1] for table in result.tables] == ["toy (1-D)", "arm (21-D)"]
    assert (out / "bound" / result.figures[0].file).stat().st_size > 10_000
    assert "simulated arm" in result.protocol[1]
    first = result.numbers["seeds"]["arm"][0]["shares"][0]["kernel"]
    assert f"{first['ours']:.2f}" in result.findings[1]


def test_the_same_seed_gives_the_same_numbers(quick, tmp_path, monkeypatch):
    monkeypatch.delenv("TRUSTGP_DATA", raising=False)
    again = run_study("bound", tmp_path, quick=True, seeds=1)
    assert again.numbers == quick[1].numbers


def test_without_matplotlib_nothing_runs_and_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"trustgp\[plots\]"):
        run_study("bound", tmp_path, quick=True)
    assert not (tmp_path / "bound" / "parts").exists()
