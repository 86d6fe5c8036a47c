"""Tasks of a new user, a few lines each, as they are written without a look into the documents."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_networks import adam
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from zoo import Net

import trustgp

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, size=(400, 3))  # float64, as NumPy and pandas have it
Y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * GENERATOR.normal(size=400)
LABELS = (X[:, 0] + 0.3 * GENERATOR.normal(size=400) > 0).astype(int) + (X[:, 1] > 0.5).astype(int)
TRAIN, HELD, TEST = slice(200), slice(200, 300), slice(300, 400)


def trained(outputs=1, targets=Y, loss=nn.functional.mse_loss, seed=0, body=None):
    """A float32 network, trained on the first 200 rows."""
    torch.manual_seed(seed)
    network = body or nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, outputs))
    x, y = torch.tensor(X[TRAIN], dtype=torch.float32), torch.tensor(targets[TRAIN])
    y = y.float().reshape(200, -1) if y.is_floating_point() else y
    return adam(network, lambda net: loss(net(x), y), 150, 0.02)


def covered(prediction, targets=Y[TEST]):
    """The share of test rows inside the 95 % interval."""
    lower, upper = (end.numpy().reshape(-1) for end in prediction.interval(0.95))
    return float(((lower <= targets) & (targets <= upper)).mean())


@pytest.fixture(scope="module")
def network():
    return trained()


@pytest.fixture(scope="module")
def model(network):
    return trustgp.fit(network, (X[TRAIN], Y[TRAIN]), validation=(X[HELD], Y[HELD]), progress=False)


def test_01_a_table_in_numpy(model):
    p = model.predict(X[TEST])
    assert p.std.shape == (100, 1)
    assert covered(p) > 0.88
    assert float(model.predict(100 * X[TEST]).std.mean()) > 3 * float(p.std.mean())


def test_02_a_data_frame(network):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed.")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)
    model = trustgp.fit(network, (frame[["a", "b", "c"]][:200], frame["y"][:200]), progress=False)
    assert covered(model.predict(frame[["a", "b", "c"]][300:])) > 0.85


def test_03_data_loaders(network):
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
    loaders = [DataLoader(TensorDataset(x[part], y[part]), batch_size=32) for part in (TRAIN, HELD, TEST)]
    model = trustgp.fit(network, loaders[0], validation=loaders[1], progress=False)
    assert covered(model.predict(loaders[2])) > 0.88


@pytest.fixture(scope="module")
def classifier():
    return trained(3, LABELS, nn.functional.cross_entropy)


def test_04_a_classifier_with_integer_labels(classifier):
    rows = {"validation": (X[HELD], LABELS[HELD]), "likelihood": "classification", "progress": False}
    p = trustgp.fit(classifier, (X[TRAIN], LABELS[TRAIN]), **rows).predict(X[TEST])
    assert p.probabilities.shape == (100, 3)
    assert (p.classes.numpy() == LABELS[TEST]).mean() > 0.8


class Dicts(Dataset):
    """Rows as dicts."""

    def __len__(self):
        return 200

    def __getitem__(self, row):
        return {"x": torch.tensor(X[row], dtype=torch.float32), "y": torch.tensor(Y[row])}


def test_05_a_dataset_of_dicts(network):
    with pytest.raises(TypeError, match=r"a dict with 'x', 'y'.*unpack=lambda batch: \(inputs, targets\)"):
        trustgp.fit(network, Dicts(), progress=False)
    model = trustgp.fit(network, Dicts(), unpack=lambda batch: (batch["x"], batch["y"]), progress=False)
    assert covered(model.predict(X[TEST])) > 0.85


def test_06_five_networks(network):
    networks = [network, *(trained(seed=seed) for seed in range(1, 5))]
    model = trustgp.fit(networks, (X[TRAIN], Y[TRAIN]), validation=(X[HELD], Y[HELD]), progress=False)
    assert covered(model.predict(X[TEST])) > 0.88


def test_07_a_head_of_mean_and_variance():
    def nll(outputs, y):
        return nn.functional.gaussian_nll_loss(outputs[:, :1], y, outputs[:, 1:].exp())

    network, rows = trained(2, loss=nll), (X[TRAIN], Y[TRAIN])
    with pytest.raises(ValueError, match="Means and logarithms of variances") as caught:
        trustgp.fit(network, rows, progress=False)
    advice = eval(re.search(r"select=(.*)\.$", str(caught.value))[1])  # as the message has it
    assert covered(trustgp.fit(network, rows, select=advice, progress=False).predict(X[TEST])) > 0.85


def test_08_a_perceptron_of_scikit_learn():
    from sklearn.neural_network import MLPRegressor

    perceptron = MLPRegressor(hidden_layer_sizes=(16,), solver="lbfgs", max_iter=200, random_state=0)
    perceptron.fit(X[TRAIN], Y[TRAIN])
    model = trustgp.fit(perceptron, (X[TRAIN], Y[TRAIN]), validation=(X[HELD], Y[HELD]), progress=False)
    p = model.predict(X[TEST])
    np.testing.assert_allclose(p.mean.numpy().reshape(-1), perceptron.predict(X[TEST]), rtol=1e-5, atol=1e-6)
    assert covered(p) > 0.88


def test_09_gradient_boosting():
    from sklearn.ensemble import GradientBoostingRegressor

    trees = GradientBoostingRegressor(n_estimators=30, random_state=0).fit(X[TRAIN], Y[TRAIN])
    model = trustgp.fit(trees, (X[TRAIN], Y[TRAIN]), validation=(X[HELD], Y[HELD]), progress=False)
    assert covered(model.predict(X[TEST])) > 0.88
    assert "no gradients" in repr(model.network)


def test_10_onnx(model, tmp_path):
    runtime = pytest.importorskip("onnxruntime", reason='not installed: pip install "trustgp[export]"')
    trustgp.export_onnx(model, tmp_path / "arm.onnx", X[:3])
    session = runtime.InferenceSession(str(tmp_path / "arm.onnx"), providers=["CPUExecutionProvider"])
    (variance,) = session.run(["variance"], {session.get_inputs()[0].name: X[TEST].astype(np.float32)})
    np.testing.assert_allclose(variance, model.predict(X[TEST]).variance.numpy(), rtol=1e-3)


def test_11_is_it_calibrated(model, tmp_path):
    scores = trustgp.evaluate(model, (X[TEST], Y[TEST]))
    assert "inside the 95 % interval" in str(scores)
    pytest.importorskip("matplotlib", reason='not installed: pip install "trustgp[plots]"')
    trustgp.plots.overview(scores).savefig(tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 1000


def test_12_new_rows(network):
    model = trustgp.fit(network, (X[:100], Y[:100]), progress=False)
    before = model.predict(X[TEST]).epistemic.mean()
    model.update((X[100:200], Y[100:200]), progress=False)
    assert model.predict(X[TEST]).epistemic.mean() < before
    assert covered(model.predict(X[TEST])) > 0.85


def test_13_several_labels():
    several = np.stack([X[:, 0] > 0, X[:, 1] > 0.5], axis=1).astype(np.float32)
    network = trained(2, several, nn.functional.binary_cross_entropy_with_logits)
    rows = {"validation": (X[HELD], several[HELD]), "likelihood": "multilabel", "progress": False}
    p = trustgp.fit(network, (X[TRAIN], several[TRAIN]), **rows).predict(X[TEST])
    assert (p.labels.numpy() == several[TEST]).mean() > 0.85


class Text(nn.Module):
    """A text classifier in the form of Hugging Face: named tensors in, logits out."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        weights = attention_mask[..., None] / attention_mask.sum(dim=1)[:, None, None]
        return SimpleNamespace(logits=self.head((self.embedding(input_ids) * weights).sum(dim=1)), loss=None)


def test_14_a_text_classifier():
    torch.manual_seed(0)
    tokens, mask = torch.randint(0, 20, (200, 6)), torch.arange(6) < torch.randint(2, 7, (200, 1))
    labels = ((tokens < 10) * mask).sum(dim=1).gt(mask.sum(dim=1) / 2).long()
    network, batch = Text(), {"input_ids": tokens, "attention_mask": mask.float()}
    adam(network, lambda net: nn.functional.cross_entropy(net(**batch).logits, labels), 60, 0.05)
    rows = [{**{k: v[i] for k, v in batch.items()}, "labels": labels[i]} for i in range(200)]
    loader = DataLoader(rows, batch_size=50)
    model = trustgp.fit(network, loader, likelihood="classification", progress=False)
    assert float((model.predict(batch).classes == labels).double().mean()) > 0.9


def recurrent() -> nn.Module:
    """A number at every step."""
    parts = {"layer": nn.GRU(2, 8, batch_first=True), "head": nn.Linear(8, 1)}
    return Net(lambda net, steps: net.head(net.layer(steps)[0]), **parts)


def test_15_sequences_and_segmentation():
    torch.manual_seed(0)
    steps, images = torch.randn(100, 5, 2), torch.randn(40, 1, 8, 8)
    path, labels = steps[..., :1].cumsum(dim=1).sin(), (images[:, 0] > 0).long()
    convolutions = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1))
    tasks = [
        (recurrent(), steps, path + 0.1 * torch.randn(path.shape), nn.functional.mse_loss, "regression"),
        (convolutions, images, labels, nn.functional.cross_entropy, "classification"),
    ]
    for network, inputs, targets, loss, likelihood in tasks:
        half = len(inputs) // 2
        x, y = inputs[:half], targets[:half]
        adam(network, lambda net, x=x, y=y, loss=loss: loss(net(x), y), 30, 0.05)
        model = trustgp.fit(network, (x, y), likelihood=likelihood, progress=False)
        p = model.predict(inputs[half:])
        if likelihood == "regression":
            assert p.std.shape == path[half:].shape
            lower, upper = p.interval(0.95)
            assert float(((lower <= targets[half:]) & (targets[half:] <= upper)).double().mean()) > 0.8
        else:
            assert p.probabilities.shape == (20, 2, 8, 8)
            assert float((p.classes == targets[half:]).double().mean()) > 0.8
