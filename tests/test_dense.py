"""Outputs with positions: sequences, images, masks, tagged words."""

from __future__ import annotations

import shutil
import weakref
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from exported import quick_wrapper
from tiny_networks import adam
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from zoo import Net

import trustgp
from trustgp.data.rows import Rows
from trustgp.fitting import dense as dense_fit
from trustgp.fitting.dense import position_rows
from trustgp.state import dense as dense_state
from trustgp.tangents.positions import ChannelLayout, PositionNetwork, find_layout, observed, run_watched

T = 12
QUIET = {"progress": False}


class Sequence(nn.Module):
    """Random features of each step and the one before; the last layer is solved by least squares."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.last = nn.Linear(4, 24), nn.Linear(24, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.hidden(torch.cat([x, x.roll(1, dims=1)], dim=2)).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.features(x))


class Masks(nn.Module):
    """Three classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Conv2d(1, 10, 3, padding=1), nn.Conv2d(10, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh())


def sequences(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Targets [n, T, 2], whose noise is six times as large where the first input is positive."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, T, 2, generator=generator)
    smooth = torch.stack([x[..., 0].sin(), x[..., 1] * 0.5], dim=2)
    return x, smooth + (0.05 + 0.25 * (x[..., :1] > 0)) * torch.randn(n, T, 2, generator=generator)


def pictures(n: int, seed: int, side: int = 12) -> tuple[Tensor, Tensor]:
    """Classes [n, side, side] by brightness, of a few pixels another one, of two rows of pixels none."""
    generator = torch.Generator().manual_seed(seed)
    x = F.interpolate(torch.randn(n, 1, 4, 4, generator=generator), size=(side, side), mode="bilinear")
    labels = 1 + (x[:, 0] > 0.4).long() - (x[:, 0] < -0.4).long()
    noisy = torch.rand(labels.shape, generator=generator) < 0.1
    labels = torch.where(noisy, torch.randint(0, 3, labels.shape, generator=generator), labels)
    labels[:, 0], labels[:, 5] = -100, 255
    return x + 0.2 * torch.randn(x.shape, generator=generator), labels


@pytest.fixture(scope="module")
def sequence():
    network, (x, y) = Sequence(), sequences(40, 0)
    with torch.no_grad():
        features = torch.cat([network.features(x), torch.ones(40, T, 1)], dim=2).flatten(0, 1)
        solution = torch.linalg.lstsq(features, y.flatten(0, 1)).solution
        network.last.weight.copy_(solution[:-1].T)
        network.last.bias.copy_(solution[-1])
    return network.eval(), trustgp.fit(network, (x, y), validation=sequences(30, 1), **QUIET)


@pytest.fixture(scope="module")
def masks():
    network, (x, y) = Masks(), pictures(30, 0)
    seen = torch.where(y == 255, -100, y)
    adam(network, lambda net: F.cross_entropy(net(x), seen), 60, 0.05)
    options = {"validation": pictures(20, 1), "likelihood": "classification", **QUIET}
    return network, trustgp.fit(network, (x, y), **options)


def test_a_sequence_is_predicted_in_its_shape_and_its_intervals_cover(sequence):
    network, model = sequence
    x, y = sequences(100, 2)
    p = model.predict(x)
    assert isinstance(model, trustgp.DenseModel)
    assert isinstance(p, trustgp.DensePrediction)
    assert torch.equal(p.mean, network(x))
    assert p.std.shape == p.corrected.mean.shape == p.quantile(0.1).shape == (100, T, 2)
    assert p.novelty.shape == p.score.shape == p.valid.shape == (100, T)
    assert p.score_of_inputs.shape == (100,)
    lower, upper = p.interval(0.95)
    inside, loud = (y >= lower) & (y <= upper), x[..., 0] > 0
    assert 0.90 <= float(inside.double().mean()) <= 0.98
    assert float(inside[loud].double().mean()) >= 0.90
    assert float(p.std[loud].mean()) > 1.2 * float(p.std[~loud].mean())
    assert p.interval([0.5, 0.9])[0].shape == (2, 100, T, 2)
    assert p.sample(3, torch.Generator().manual_seed(0)).shape == (3, 100, T, 2)


def test_rows_are_the_inputs_of_the_last_layer_and_the_outputs(sequence):
    network, model = sequence
    x, y = sequences(5, 3)
    rows = model.as_rows((x, y), "data")
    with torch.no_grad():
        expected = torch.cat([network.features(x), network(x)], dim=2).reshape(5 * T, 26)
    assert torch.equal(rows.inputs, expected)
    assert torch.equal(rows.targets, y.reshape(5 * T, 2))
    flat, p = model.row_model.predict(expected), model.predict(x)
    assert torch.equal(flat.variance, p.variance.reshape(5 * T, 2))
    assert torch.equal(flat.log_prob(rows.targets), p.log_prob(y).reshape(5 * T, 2))
    gap = y.clone()
    gap[0, 3] = torch.nan
    assert len(model.as_rows((x, gap), "data").targets) == 5 * T - 1
    assert p.log_prob(gap)[0, 3].tolist() == [0.0, 0.0]


def test_pixels_have_probabilities_no_worse_than_one_temperature(masks):
    network, model = masks
    (x, y), held_out = pictures(60, 2), pictures(20, 1)
    p, seen = model.predict(x), (y != -100) & (y != 255)
    assert p.probabilities.shape == p.mean.shape == (60, 3, 12, 12)
    assert p.classes.shape == p.score.shape == p.temperature.shape == (60, 12, 12)
    assert torch.equal(p.classes, p.mean.argmax(dim=1))
    torch.testing.assert_close(p.probabilities.sum(dim=1), torch.ones(60, 12, 12))
    with torch.no_grad():
        logits, labels = network(held_out[0]), torch.where(held_out[1] == 255, -100, held_out[1])
        losses = {t: float(F.cross_entropy(logits / t, labels)) for t in torch.linspace(0.3, 3, 100).tolist()}
        best = min(losses, key=lambda t: losses[t])
        one = F.cross_entropy(network(x) / best, torch.where(y == 255, -100, y))
    assert -float(p.log_prob(y)[seen].mean()) <= float(one) + 0.005
    assert float(p.log_prob(y)[~seen].abs().max()) == 0.0
    foreign = model.predict(3 * torch.randn(60, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
    assert float(foreign.score.mean()) > float(p.score.mean())


def test_a_prediction_is_a_batch_of_inputs(masks):
    model, x = masks[1], pictures(6, 4)[0]
    p = model.predict(x)
    assert torch.equal(p[2:4].probabilities, p.probabilities[2:4])
    assert torch.equal(p[[5, 0]].score, p.score[[5, 0]])
    assert len(p) == 6
    assert len(p[1]) == 1
    assert p.numpy()["probabilities"].shape == (6, 3, 12, 12)
    assert "outputs [3, 12, 12]" in repr(p)
    assert "positions of 30 inputs" in repr(model)
    parts = trustgp.DensePrediction.cat([p[:2], p[2:]])
    assert torch.equal(parts.variance, p.variance)
    assert torch.equal(p.to(torch.float64).mean, p.mean.double())


def test_many_pictures_are_predicted_a_few_at_a_time(masks, monkeypatch):
    model, x = masks[1], pictures(7, 4)[0]
    p = model.predict(x)
    monkeypatch.setattr(dense_state, "CHUNK_BYTES", 4 * 13 * 144 * 3)  # three pictures
    state, sizes = dense_state.model_state, []
    original = state.predict
    monkeypatch.setattr(state, "predict", lambda s, rows: sizes.append(len(rows)) or original(s, rows))
    assert torch.equal(model.predict(x).probabilities, p.probabilities)
    assert sizes == [3 * 144, 3 * 144, 144]


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors of this thread that are in use at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.sizes, self.now, self.peak = Counter(), {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and tensor.numel():
                storage = tensor.untyped_storage()
                place = storage.data_ptr()
                if not self.users[place]:
                    self.sizes[place] = storage.nbytes()
                    self.now += storage.nbytes()
                self.users[place] += 1
                weakref.finalize(tensor, self._drop, place)
                self.peak = max(self.peak, self.now)
        return made

    def _drop(self, place: int) -> None:
        self.users[place] -= 1
        if not self.users[place]:
            self.now -= self.sizes.pop(place)


class Reached(Exception):
    """Ends a fit where its rows are ready."""


def test_memory_grows_by_few_numbers_for_each_pixel(masks, monkeypatch):
    """A pixel has 13 numbers of features and logits, and hundreds of gradients. `predict` makes those of few
    pixels at a time, and a fit has as many rows for pictures of any size."""

    def ready(network, rows, options):
        raise Reached(len(rows), len(options.validation))

    monkeypatch.setattr(dense_fit, "MAX_POSITIONS", 600)
    monkeypatch.setattr(dense_fit, "MAX_HELD_OUT", 300)
    monkeypatch.setattr(dense_fit, "fit_model", ready)
    bytes_of = {}
    for side in (16, 64):
        train, held_out = pictures(12, 0, side), pictures(4, 1, side)
        with LiveBytes() as live, pytest.raises(Reached, match=r"\(600, 300\)"):
            trustgp.fit(masks[0], train, validation=held_out, likelihood="classification", **QUIET)
        bytes_of[side] = live.peak
    assert (bytes_of[64] - bytes_of[16]) / (12 * (64**2 - 16**2)) < 4 * 60
    monkeypatch.setattr(dense_state, "CHUNK_BYTES", 2**19)
    for n in (4, 8):
        with LiveBytes() as live:
            masks[1].predict(pictures(n, 2, 64)[0])
        bytes_of[n] = live.peak
    assert (bytes_of[8] - bytes_of[4]) / (4 * 64**2) < 4 * 150


def test_an_invalid_pixel_is_marked_and_leaves_others(masks):
    model, x = masks[1], pictures(3, 4)[0]
    broken = x.clone()
    broken[1, 0, 6, 6] = torch.nan
    p = model.predict(broken)
    assert (~p.valid).nonzero().tolist() == [[1, i, j] for i in (5, 6, 7) for j in (5, 6, 7)]
    assert torch.isinf(p.variance[1, :, 6, 6]).all()
    assert torch.equal(p.probabilities[0], model.predict(x).probabilities[0])


@pytest.mark.parametrize("kind", ["sequence", "masks"])
def test_files_hold_the_model_and_other_networks_are_refused(kind, request, tmp_path):
    network, model = request.getfixturevalue(kind)
    inputs = (sequences if kind == "sequence" else pictures)(4, 5)[0]
    model.save(tmp_path / "dense.trustgp")
    again = trustgp.load(tmp_path / "dense.trustgp", network)
    assert torch.equal(again.predict(inputs).variance, model.predict(inputs).variance)
    other = type(network)().eval()
    with pytest.raises(trustgp.ArtifactError, match="another network"):
        trustgp.load(tmp_path / "dense.trustgp", other)


def test_onnx_files_answer_as_predict_does(masks, tmp_path):
    pytest.importorskip("onnxruntime")
    model, x = masks[1], pictures(4, 5)[0]
    path = trustgp.export_onnx(model, tmp_path / "masks.onnx", x)
    answers, p = trustgp.export.open_onnx(path)(x), model.predict(x)
    assert answers["probabilities"].shape == (4, 3, 12, 12)
    assert answers["score"].shape == (4, 12, 12)
    torch.testing.assert_close(torch.as_tensor(answers["probabilities"]), p.probabilities, atol=1e-4, rtol=0)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="a package takes a C++ compiler: no g++ here")
def test_packages_answer_as_predict_does(masks, tmp_path):
    """That inductor compiles what is traced: half a minute."""
    network, (x, y) = masks[0], pictures(20, 0)
    options = {"likelihood": "classification", "num_experts": 2, "validation": pictures(10, 1), **QUIET}
    model = trustgp.fit(network, (x, y), **options)
    with torch._inductor.config.patch(quick_wrapper()):
        path = trustgp.export.compile(model, tmp_path / "masks.pt2", x[:4])
    answers, p = trustgp.export.open_compiled(path)(x[:6]), model.predict(x[:6])
    for name in ("probabilities", "score", "valid"):
        torch.testing.assert_close(torch.as_tensor(answers[name]), getattr(p, name), atol=1e-4, rtol=0)


def test_the_weight_of_an_input_is_that_of_its_positions():
    network, (x, y), weights = Sequence().eval(), sequences(40, 0), torch.arange(1.0, 41.0)
    model = trustgp.fit(network, (x, y), weights=weights, validation=sequences(10, 1), **QUIET)
    found = model.memory.rows.weights
    assert torch.allclose(found.reshape(40, T), (weights / weights.mean()).double()[:, None])
    with pytest.raises(ValueError, match="one for each of 40 rows"):
        trustgp.fit(network, (x, y), weights=weights[1:], **QUIET)


def test_an_update_adds_positions_and_scores_are_those_of_rows(sequence, tmp_path):
    network, model = sequence
    model.save(tmp_path / "dense.trustgp")
    again, (x, y) = trustgp.load(tmp_path / "dense.trustgp", network), sequences(8, 6)
    before = again.origin.rows
    assert again.update((x, y), progress=False)
    assert again.origin.rows == before + 8 * T
    assert not torch.equal(again.predict(x).variance, model.predict(x).variance)
    scores = trustgp.evaluate(model, sequences(20, 7), ood=10 * x, progress=False)
    assert 0.90 <= scores.coverage <= 0.98
    assert model.threshold(x, false_alarm=0.05) > 0


@pytest.mark.parametrize("refused", ["compress", "Monitor", "joint", "conformal"])
def test_what_positions_cannot_do_is_refused_with_a_sentence(sequence, refused):
    model = sequence[1]
    calls = {
        "compress": lambda: trustgp.compress(model, rank=2),
        "Monitor": lambda: trustgp.Monitor(model),
        "joint": lambda: model.joint(sequences(2, 0)[0]),
        "conformal": lambda: model.conformal(sequences(50, 0)),
    }
    with pytest.raises(ValueError, match=f"trustgp.{refused} is not for a DenseModel"):
        calls[refused]()


CONV, LINEAR = nn.Conv2d(1, 5, 1), nn.Linear(4, 5)


@pytest.mark.parametrize(
    ("layer", "shape", "targets", "classes", "axis"),
    [
        (CONV, (2, 1, 6, 8), (6, 8), True, 1),  # [n, K, H, W] and [n, H, W]
        (CONV, (2, 1, 6, 8), (1, 6, 8), True, 1),  # a mask with a channel
        (CONV, (2, 1, 6, 8), (5, 6, 8), False, 1),
        (LINEAR, (2, 9, 4), (9,), True, -1),  # [n, T, K] and [n, T]
        (LINEAR, (2, 5, 4), (5,), True, -1),  # as many steps as classes: the layer decides
        (nn.Conv1d(4, 9, 1), (2, 4, 9), (9,), True, 1),
        (LINEAR, (2, 9, 4), (9, 5), False, -1),
        (LINEAR, (2, 3, 3, 4), (3, 3, 5), False, -1),
    ],
)
def test_the_dimension_of_the_channels_follows_from_targets_and_layer(layer, shape, targets, classes, axis):
    outputs, layers = run_watched(layer, torch.randn(shape))
    kind = torch.zeros(2, *targets, dtype=torch.int64 if classes else torch.float32)
    layout = find_layout(outputs, layers, kind, classes=classes)
    assert layout == ChannelLayout(axis)
    columns = layout.columns(outputs)
    assert columns.shape[-1] == layer.weight.shape[0]
    assert torch.equal(layout.restored(columns), outputs)


def test_outputs_without_a_channel_and_shapes_that_do_not_fit():
    layer = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(1, 2))
    outputs, layers = run_watched(layer, torch.randn(2, 1, 6, 8))
    assert find_layout(outputs, layers, torch.randn(2, 6, 8), classes=False) == ChannelLayout(None)
    outputs, layers = run_watched(CONV, torch.randn(2, 1, 6, 8))
    with pytest.raises(ValueError, match="one class number for each position"):
        find_layout(outputs, layers, torch.zeros(2, 12, 16).long(), classes=True)
    with pytest.raises(ValueError, match="but targets are"):
        find_layout(outputs, layers, torch.zeros(2, 5, 12, 16), classes=False)


def test_features_of_a_coarser_layer_are_those_of_the_nearest_position():
    layer = nn.Conv2d(1, 2, 1)
    network = nn.Sequential(layer, nn.Upsample(scale_factor=2))
    x = torch.randn(3, 1, 4, 4)
    outputs, features = PositionNetwork(network, ChannelLayout(1))(x)
    assert outputs.shape == (3, 2, 8, 8)
    assert torch.equal(features[..., 0], x[:, 0].repeat_interleave(2, 1).repeat_interleave(2, 2))


def test_positions_are_drawn_evenly_from_inputs_and_ignored_ones_never():
    x, y = pictures(6, 0)
    network = PositionNetwork(Masks(), ChannelLayout(1))
    rows, groups = position_rows(network, Rows(x, y), classes=True, most=60)
    assert groups is not None
    assert groups.bincount().tolist() == [10] * 6
    assert rows.inputs.shape == (60, 13)
    assert rows.targets.unique().tolist() == [0, 1, 2]
    assert observed(torch.tensor([[-100], [255], [3]]), 300).tolist() == [False, True, True]


def test_outputs_of_a_layer_without_positions_are_flattened(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 10), nn.Unflatten(1, (5, 2))).eval()
    x = torch.randn(80, 3)
    y = network(x).detach() + 0.1 * torch.randn(80, 5, 2)
    model = trustgp.fit(network, (x[:60], y[:60]), validation=(x[60:], y[60:]), tangents="last", **QUIET)
    p = model.predict(x)
    assert p.mean.shape == p.std.shape == (80, 5, 2)
    assert p.novelty.shape == (80,)
    assert model.shape.outputs == 10
    assert p.log_prob(y).shape == (80, 5, 2)
    flat = model.row_model.predict(x)
    assert torch.equal(flat.std, p.std.flatten(1))
    model.save(tmp_path / "flat.trustgp")
    assert torch.equal(trustgp.load(tmp_path / "flat.trustgp", network).predict(x).std, p.std)


def tagger(net, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
    """Four tags a word, like a Hugging Face model for tokens."""
    return {"logits": net.last(net.words(input_ids).tanh())}


def tagged(lengths: tuple[int, ...], seed: int) -> list[dict[str, Tensor]]:
    generator, batches = torch.Generator().manual_seed(seed), []
    for length in lengths:
        words = torch.randint(1, 30, (20, length), generator=generator)
        mask = (torch.arange(length) < torch.randint(2, length + 1, (20, 1), generator=generator)).long()
        labels = torch.where(mask == 1, words % 4, -100)
        batches.append({"input_ids": words * mask, "attention_mask": mask, "labels": labels})
    return batches


def test_words_are_tagged_in_batches_of_different_lengths(tmp_path):
    torch.manual_seed(0)
    network = Net(tagger, words=nn.Embedding(30, 8), last=nn.Linear(8, 4)).eval()
    test = tagged((4, 7), 2)
    options = {"validation": tagged((5, 6), 1), "likelihood": "classification", **QUIET}
    model = trustgp.fit(network, tagged((5, 8), 0), **options)
    p = model.predict(test)
    assert p.probabilities.shape == (40, 7, 4)
    assert not p.valid[:20, 4:].any()
    assert p.valid[20:].all()
    assert torch.equal(p.mean[:20, :4], network(test[0]["input_ids"], None)["logits"].detach())
    model.save(tmp_path / "tags.trustgp")
    again = trustgp.load(tmp_path / "tags.trustgp", network).predict(test)
    assert torch.equal(again.probabilities, p.probabilities)


def test_wrong_calls_name_what_to_do(sequence):
    network = sequence[0]
    with pytest.raises(ValueError, match="tangents= is not for outputs of many positions"):
        trustgp.fit(network, sequences(20, 0), tangents=["hidden.weight"], **QUIET)
    with pytest.raises(ValueError, match="several networks"):
        trustgp.fit([network, network], sequences(20, 0), **QUIET)
    with pytest.raises(ValueError, match="but targets are"):
        trustgp.fit(network, (torch.randn(9, T, 2), torch.randn(9, T, 3)), **QUIET)
    with pytest.raises(TypeError, match=r"torch.nn.Module"):
        trustgp.fit(lambda rows: rows, (torch.randn(9, 2), torch.randn(9, 2, 3)), **QUIET)
