"""Models of Hugging Face, small and with random weights: gradients against a plain loop, and fits."""

import copy

import pytest
import torch
from reference import dense_jacobian, dense_rows
from zoo import seeded

import trustgp
from trustgp.data.trees import count
from trustgp.tangents import JacobianRows, Sketch, output_mixes
from trustgp.tangents.network import prepare
from trustgp.tangents.outputs import with_output

transformers = pytest.importorskip("transformers", reason='it is not installed: pip install "trustgp[hf]"')
# vmap warns of operations that it computes row by row
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
TEXT = {"vocab_size": 20, "max_position_embeddings": 8, "num_labels": 2}
GPT2 = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2, "num_labels": 2}
LLAMA = {"num_key_value_heads": 1, "pad_token_id": 0}
VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 2}
KINDS = {  # the class, that of its settings, and these
    "bert": ("BertForSequenceClassification", "BertConfig", {**SIZES, **TEXT}),
    "gpt2": ("GPT2ForSequenceClassification", "GPT2Config", {**GPT2, "pad_token_id": 0}),
    "llama": ("LlamaForSequenceClassification", "LlamaConfig", {**SIZES, **TEXT, **LLAMA}),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SIZES, **VIT}),
}


def built(name):
    """A model in float64."""
    kind, config, options = KINDS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, kind)(getattr(transformers, config)(**options)).double().eval()


def rows_for(name, n):
    if name == "vit":
        return {"pixel_values": seeded(n, 1, 8, 8)}
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(1, 20, (n, 6), generator=generator)
    mask = (torch.arange(6) < torch.randint(2, 7, (n, 1), generator=generator)).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def logits(result):
    return result.logits


@pytest.mark.parametrize(
    "name", ["bert", "gpt2", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("llama", "vit"))]
)
def test_gradients_are_those_of_a_plain_loop(name):
    network, inputs = with_output(built(name), logits), rows_for(name, 4)
    prepared = prepare(network, "all", None)
    mix, _ = output_mixes("shared", 2, torch.Generator())[0]
    tangents = JacobianRows().bind(prepared, mix, inputs, torch.zeros(count(inputs), 2))
    jacobian = dense_jacobian(network, inputs)
    # whatever its precision, Llama normalises in float32
    close = {"rtol": 1e-4, "atol": 1e-6} if name == "llama" else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(tangents(inputs).rows, dense_rows(jacobian, mix), **close)
    theta = torch.cat([value.flatten() for value in prepared.parameters.values()])
    torch.testing.assert_close(prepared.directional(inputs, prepared.parameters), jacobian @ theta, **close)


NIGHTLY = [pytest.param(name, torch.float32, marks=pytest.mark.nightly) for name in ("bert", "gpt2")]


@pytest.mark.parametrize(("name", "dtype"), [("vit", torch.bfloat16), *NIGHTLY])
@pytest.mark.filterwarnings("ignore:.*computed row by row")
def test_regression_and_classification_keep_the_mean_and_do_not_change_the_model(name, dtype, tmp_path):
    network, inputs = built(name).to(dtype), rows_for(name, 60)
    if name == "vit":
        inputs = {"pixel_values": inputs["pixel_values"].to(dtype)}
    before = copy.deepcopy(network.state_dict())
    with torch.no_grad():
        expected = network(**inputs).logits
    validation = {key: value[:30] for key, value in inputs.items()}
    options = {"select": logits, "tangents": Sketch(64), "witness": None, "progress": False}
    labels = (torch.arange(60) % 2).long()
    for likelihood, targets in (("regression", seeded(60, 2)), ("classification", labels)):
        options |= {"likelihood": likelihood, "validation": (validation, targets[:30])}
        model = trustgp.fit(network, (inputs, targets), **options)
        p = model.predict(inputs)
        assert torch.equal(p.mean, expected)
        assert bool((p.epistemic > 0).all())
        assert p.epistemic.dtype == torch.float32
        model.save(tmp_path / "model.trustgp")
        again = trustgp.load(tmp_path / "model.trustgp", network, select=logits)
        assert torch.equal(again.predict(inputs).epistemic, p.epistemic)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
