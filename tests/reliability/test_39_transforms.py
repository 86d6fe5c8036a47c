"""Promise 39: `predict` within a transform of torch.func raises, and leaves nothing behind in the model."""

import pytest
import torch
from reliability.helpers import quiet_fit, trained
from torch import func

from trustgp.tangents import Sketch

ROW = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
TRANSFORMS = {
    "vmap": lambda predict: func.vmap(lambda row: predict(row[None]).std)(ROW.expand(4, 3)),
    "grad": lambda predict: func.grad(lambda row: predict(row[None]).mean.sum())(ROW),
    "jvp": lambda predict: func.jvp(lambda row: predict(row[None]).std, (ROW,), (ROW,)),
    "jacrev": lambda predict: func.jacrev(lambda row: predict(row[None]).std)(ROW),
}


@pytest.mark.parametrize("tangents", [None, Sketch(32)])
def test_a_transform_is_refused_and_the_model_stays_as_it_was(tangents, tmp_path):
    network, x, y = trained(60, inputs=3)
    model = quiet_fit(network, (x, y), tangents=tangents)
    rows = ROW.expand(4, 3)
    before = model.predict(rows).std
    model.save(tmp_path / "before")
    for transform in TRANSFORMS.values():
        with pytest.raises(RuntimeError, match=r"within torch.func .* pass all rows at once"):
            transform(model.predict)
    assert torch.equal(model.predict(rows).std, before)
    model.save(tmp_path / "after")
    assert (tmp_path / "after").read_bytes() == (tmp_path / "before").read_bytes()
