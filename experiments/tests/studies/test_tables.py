"""The study of tables: its networks, and a small run."""

import torch

from trustgp_experiments.core.cases import Case
from trustgp_experiments.core.regression import method_names
from trustgp_experiments.studies.tables import study as tables


def test_batches_are_a_tenth_of_the_rows_and_steps_are_kept():
    rows = torch.zeros(1000, 3), torch.zeros(1000, 2)
    recipe = tables.recipe(Case(rows, rows, {}), 2000)
    assert (recipe.batch_size, recipe.epochs) == (100, 200)
    widths = [layer.out_features for layer in recipe.make(seed=0) if hasattr(layer, "out_features")]
    assert widths == [64, 64, 2]


def test_a_small_run_scores_every_method(small_run):
    result = small_run("tables")[1]
    names = method_names(quick=True, without=tables.OMITTED_METHODS)
    for seed in (seed for run in result.numbers["runs"] for seed in run["seeds"]):
        assert set(seed["methods"]) == set(names)
        assert not seed["failed"]
    assert any("TabPFN is missing" in line for line in result.protocol)
