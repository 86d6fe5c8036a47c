"""The fitted models that the tests share are what their names promise."""

from __future__ import annotations

import torch
from fitted_zoo import NAMES, names


def test_every_member_is_what_its_name_says(fitted_zoo):
    assert len(NAMES) == 12
    assert names("rows", "separate") == ["regression-rows-separate-witness"]
    for name in NAMES:
        member, words = fitted_zoo[name], name.split("-")
        prediction = member.model.predict(member.fresh[0])
        assert prediction.variance.shape == (40, 3 if words[0] == "classification" else 2), name
        assert torch.isfinite(prediction.variance).all(), name
        assert (member.model.witness is not None) == ("witness" in words or name == "regression-default"), (
            name
        )
        assert len(member.model.mixtures) == (prediction.variance.shape[1] if "separate" in words else 1), (
            name
        )
        assert fitted_zoo[name].model is member.model
