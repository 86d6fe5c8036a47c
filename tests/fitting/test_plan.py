import logging
import re

import pytest
import torch

from trustgp.data.quantities import parse_bytes, size_text
from trustgp.executors import Threads
from trustgp.experts.neighbours import Patchwork
from trustgp.experts.witness import Witness
from trustgp.fitting import duration
from trustgp.fitting.divide import FEWEST, expert_bytes, gate_bytes
from trustgp.fitting.options import FitOptions
from trustgp.fitting.plan import WITNESS_SHARE, Plan, check_memory, make_plan
from trustgp.tangents import JacobianRows, LayerFactors, output_mixes
from trustgp.tangents.network import prepare


def bound_map(case, tangents=None):
    tangents = tangents or LayerFactors()
    mix, _ = output_mixes("shared", 2, torch.Generator())[0]
    return tangents.bind(prepare(case.network, "all", None), mix, case.inputs[:4], case.targets[:4])


def tensor_bytes(state) -> int:
    from trustgp.data.trees import state_tensors

    return sum(t.numel() * t.element_size() for t in state_tensors(state))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64 MiB", 64 * 2**20),
        ("64mib", 64 * 2**20),
        ("2 GB", 2 * 10**9),
        ("1.5 KiB", 1536),
        ("7 b", 7),
        (12345, 12345),
    ],
)
def test_sizes_are_read(text, expected):
    assert parse_bytes(text, name="budget") == expected


@pytest.mark.parametrize("text", ["64", "many", "64 MiBs", "", "-3 MiB", 0, -5, "0 b", "1.2.3 MiB"])
def test_what_is_not_a_size_is_refused_by_name(text):
    with pytest.raises(ValueError, match="budget="):
        parse_bytes(text, name="budget")


def test_sizes_are_written_for_people():
    assert size_text(512) == "512 B"
    assert size_text(1536) == "1.5 KiB"
    assert size_text(3 * 2**20) == "3.0 MiB"
    assert size_text(5 * 2**30) == "5.00 GiB"


@pytest.mark.parametrize(
    "tangents", [LayerFactors(), JacobianRows(), JacobianRows(keep=50), JacobianRows(keep_per_expert=9)]
)
def test_an_expert_holds_what_was_estimated(case, fit_case, tangents):
    (mixture,) = fit_case(tangents=tangents).mixtures
    for expert in mixture.experts:
        held, rank = tensor_bytes(expert), expert.posterior.directions or None
        estimate = expert_bytes(mixture.tangents, len(expert.rows), 2, rank)
        assert held <= estimate + 100  # scales, noises and the like
        assert held >= 0.95 * estimate


@pytest.mark.parametrize("tangents", [LayerFactors(), JacobianRows()])
def test_a_gate_holds_what_was_estimated(case, fit_case, tangents):
    model = fit_case(tangents=tangents)
    gate = model.mixtures[0].gate
    tangent_map = model.mixtures[0].tangents
    held = tensor_bytes(gate) + tensor_bytes(tuple(tangent_map.state().values()))
    assert held == gate_bytes(tangent_map, 160, 8, gate.num_experts)


def test_the_gate_of_one_expert_takes_next_to_nothing(case):
    assert gate_bytes(bound_map(case), 512, 8, 1) <= 64


def plan(case, n=160, num_experts=None, budget=None, **options):
    given = {"witness": Witness(), "num_experts": num_experts, "budget": budget, **options}
    options, sample, workers = FitOptions.parse(**given), case.inputs[:16], Threads(2).workers
    bound = bound_map(case, options.tangents)
    return make_plan([bound], sample, n, options, num_outputs=2, workers=workers, double=True)


@pytest.mark.parametrize(("n", "experts"), [(160, 1), (1000, 1), (1001, 2), (64_000, 64)])
def test_an_expert_has_about_a_thousand_rows_by_default(case, n, experts):
    assert plan(case, n).num_experts == experts


def test_more_experts_than_rows_are_refused(case):
    with pytest.raises(ValueError, match="num_experts=161 exceeds the 160 rows; lower it or pass more data"):
        plan(case, num_experts=161)


@pytest.mark.parametrize("experts", [0, -2])
def test_less_than_one_expert_is_refused(case, experts):
    with pytest.raises(ValueError, match=f"num_experts={experts}"):
        plan(case, num_experts=experts)


def test_a_plan_estimates_size_memory_and_time(case):
    found = plan(case, 5000, 8)
    assert 0 < found.state_bytes < found.peak_bytes
    assert found.seconds > 0
    assert plan(case, 5000, 8, budget=10**6, tangents=JacobianRows()).state_bytes <= 10**6


def test_the_estimate_of_the_state_is_near_what_the_model_holds(case, fit_case):
    estimate, held = plan(case, 160, 4).state_bytes, fit_case(num_experts=4, budget="none").nbytes
    assert 0.5 * held < estimate < 2 * held


@pytest.mark.parametrize(("n", "size"), [(160, 750), (900, 100), (5000, 250)])
def test_the_estimate_of_the_witness_is_near_what_it_holds(case, find, toy, n, size):
    held = find(*toy(n, seed=3), rows=size).nbytes
    estimate = plan(case, n, 4, witness=Witness(rows=size)).witness_bytes
    assert estimate == pytest.approx(held, rel=0.05)


def test_without_a_witness_a_plan_is_smaller(case):
    heard, alone = plan(case, 5000, 8), plan(case, 5000, 8, witness=None)
    assert alone.witness_bytes == 0
    assert heard.state_bytes == alone.state_bytes + heard.witness_bytes
    assert heard.peak_bytes > alone.peak_bytes
    assert plan(case, 5000, 8, witness=Witness(most_inputs=2)).witness_bytes == 0  # there are three
    assert plan(case, 49, 2).witness_bytes == 0


@pytest.mark.parametrize("budget", [3 * 10**5, 10**6, 10**9])
def test_a_witness_takes_at_most_its_share_of_a_budget_or_is_left_out(case, budget):
    found = plan(case, 5000, 8, budget=budget, tangents=JacobianRows(), rank=FEWEST)
    fits = plan(case, 5000, 8).witness_bytes <= WITNESS_SHARE * budget
    assert fits == (budget > 3 * 10**5)
    assert (found.witness_bytes > 0) == fits
    assert found.witness_bytes <= WITNESS_SHARE * budget
    assert found.state_bytes <= budget


def test_a_fit_that_would_not_fit_into_memory_is_refused_before_it_begins(fit_case):
    with pytest.raises(MemoryError, match=r"more than memory \(1.0 MiB\).*More experts"):
        fit_case(memory="1 MiB")
    with pytest.raises(MemoryError, match="free"):
        check_memory(Plan(1, None, 1, 1, 2**60, 1.0, 0), None, torch.device("cpu"))


def test_the_smallest_experts_are_worth_their_gate(case, fit_case):
    with pytest.raises(ValueError, match="smallest that works") as caught:
        fit_case(budget=1000)
    needed = int(str(caught.value).split("works is ")[1].split(" bytes")[0])
    model = fit_case(budget=needed)
    assert all(e.posterior.directions >= min(FEWEST, int(e.own)) for e in model.mixtures[0].experts)


def test_kept_features_take_memory_and_save_time(case):
    found = plan(case, 5000, 8)
    kept = found.keeping()
    assert kept.seconds < found.seconds
    rows = 5000 * bound_map(case).row_bytes()
    assert kept.peak_bytes > rows
    # no worker makes features beside the expert that it solves
    assert kept.peak_bytes <= found.peak_bytes + rows


def test_features_in_a_mapped_file_take_no_memory(case):
    found = plan(case, 5000, 8)
    kept, mapped = found.keeping(), found.keeping(mapped=True)
    assert kept.peak_bytes - mapped.peak_bytes == 5000 * bound_map(case).row_bytes() == found.kept_bytes
    assert (kept.mapped, mapped.mapped) == (False, True)
    assert kept.keep_features
    assert mapped.keep_features


def test_one_expert_of_many_rows_needs_no_kernel_between_them(case):
    options = {"tangents": JacobianRows(), "num_experts": 1, "witness": None}
    few, many = (plan(case, n, **options).keeping(mapped=True).peak_bytes for n in (100_000, 200_000))
    assert many < 2**30 < 8 * 200_000**2
    assert many < 2.1 * few
    rows = 200_000 * bound_map(case, JacobianRows()).row_bytes()
    assert plan(case, 200_000, **options).keeping().peak_bytes == many + rows
    assert plan(case, 200_000, **options).peak_bytes < 2**30 + 3 * rows


def test_time_is_counted_from_the_pace_of_a_worker(case, monkeypatch):
    def at(pace, n, experts, **options):
        monkeypatch.setattr(duration, "_pace", lambda *given: pace)
        found = plan(case, n, experts, **options)
        return found.seconds, found.kept_seconds

    row, linear, expert, cube = (1.0, 0, 0, 0, 0), (0, 1.0, 0, 0, 0), (0, 0, 0, 1.0, 0), (0, 0, 0, 0, 1.0)
    alone = {"witness": None, "patchwork": Patchwork(fraction=0.1)}
    # solved by one of two workers; made by both, and before, without features, the outputs
    assert at(row, 160, 1, **alone) == pytest.approx((160 + 80 / duration.PASSES, 80))
    assert at(linear, 160, 4, **alone) == (80, 80)
    assert at(expert, 160, 4, **alone) == (2, 2)
    assert at(expert, 160, 1, **alone) == (1, 1)
    assert at(cube, 160, 4, **alone) == (0, 0)
    assert min(at(cube, 160, 4)) > 0
    # the gate's rows, those of the bound, all rows by two workers, and each expert's with what it is offered
    found = at(row, 160, 4, **alone)[0] - 80 / duration.PASSES
    assert found == pytest.approx(400 + 2 * (40 + 3 * 4 + 3 * 8))


def test_rows_to_calibrate_on_take_time(case, monkeypatch):
    monkeypatch.setattr(duration, "_pace", lambda *given: (1.0, 0, 0, 0, 0))
    options, sample = FitOptions.parse(witness=None, num_experts=4), case.inputs[:16]
    sizes = {"num_outputs": 2, "workers": 2}
    few, more = (
        make_plan([bound_map(case)], sample, 160, options, answered=rows, **sizes) for rows in (0, 50)
    )
    assert more.seconds == few.seconds + 25


def test_a_fit_says_how_long_it_took_beside_what_was_expected(fit_case, caplog):
    state = torch.get_rng_state()
    with caplog.at_level(logging.INFO, logger="trustgp"):
        fit_case()
    said = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(r"fitted in [\d.,]+ s, [\d.,]+ rows/s; [\d.,]+ s were expected\.", said[-1])
    expected = re.search(r"([\d.,]+) s were", said[-1])[1]
    assert any(line.endswith(f"and about {expected} s.") for line in said)
    assert torch.equal(torch.get_rng_state(), state)
