"""Four small fits whose answers are kept; run as a script, it keeps those of now.

Weights and rows are kept too, so that another machine's random numbers and rounding do not enter. A change
here needs a reason in the changelog.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import trustgp
from trustgp.data.tensor_file import inside

FOLDER = Path(__file__).parent / "golden"
CASES = ("regression", "classification", "sketch", "detector")
QUIET = {"progress": False, "seed": 0}


def network_of(case: str) -> nn.Module:
    """The architecture, with whatever weights it comes with."""
    if case == "regression":
        layers = [nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)]
    elif case == "classification":
        layers = [nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)]
    elif case == "sketch":
        layers = [nn.Conv1d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 2)]
    else:
        return detector()
    return nn.Sequential(*layers).double().eval()


def detector() -> nn.Module:
    """A tiny DETR."""
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"])
    sizes = {"encoder_ffn_dim": 32, "encoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 2}
    sizes |= {"decoder_ffn_dim": 32, "decoder_attention_heads": 2, "d_model": 32, "num_queries": 8}
    config = DetrConfig(backbone_config=backbone, num_labels=2, **sizes)
    return DetrForObjectDetection(config).double().eval()


def options_of(case: str) -> dict:
    """Of `trustgp.fit`, and of `trustgp.detection.fit`."""
    if case == "regression":
        return {**QUIET, "num_experts": 4}
    if case == "classification":
        return {**QUIET, "num_experts": 3, "likelihood": trustgp.Classification()}
    if case == "sketch":
        return {**QUIET, "num_experts": 3, "tangents": trustgp.Sketch(32), "outputs": "pseudo"}
    return {"progress": False, "threshold": 0.01, "overlap": 0.01, "most": 3}


def inputs_of(case: str, table: dict[str, Tensor], part: str) -> Tensor:
    """As the network takes them; pictures are kept as bytes."""
    inputs = table[f"{part}.inputs"]
    return inputs.double() / 128 - 1 if case == "detector" else inputs


def rows_of(case: str, table: dict[str, Tensor], part: str):
    """(inputs, targets) of "train", "validation" or "test"."""
    inputs = inputs_of(case, table, part)
    if case != "detector":
        return inputs, table[f"{part}.targets"]
    boxes, labels = table[f"{part}.boxes"], table[f"{part}.labels"]
    pairs = zip(boxes.reshape(-1, 1, 4), labels.reshape(-1, 1), strict=True)
    return inputs, [trustgp.BoxTargets(*pair) for pair in pairs]


def fitted(case: str, table: dict[str, Tensor]):
    """The network with its kept weights, and a model fitted to it now."""
    network = network_of(case)
    network.load_state_dict(inside(table, "weights."))
    train, validation = (rows_of(case, table, part) for part in ("train", "validation"))
    fit = trustgp.detection.fit if case == "detector" else trustgp.fit
    return network, fit(network, train, validation=validation, **options_of(case))


def answers(case: str, model, table: dict[str, Tensor]) -> dict[str, Tensor]:
    """Everything a user reads of a prediction for the test rows."""
    predicted = model.predict(inputs_of(case, table, "test"))
    if case == "detector":
        names = ("boxes", "std", "labels", "confidence", "probabilities", "novelty")
        parts = {name: torch.cat([getattr(one, name) for one in predicted]) for name in names}
        pictures = [one.picture_novelty for one in predicted]
        return parts | {"pictures": torch.tensor(pictures, dtype=torch.float64)}
    names = ["mean", "variance", "epistemic", "aleatoric", "expert", "novelty"]
    table = {name: getattr(predicted, name) for name in names}
    if case == "classification":
        return {**table, "probabilities": predicted.probabilities}
    (lower, upper), corrected = predicted.interval(0.9), predicted.corrected
    table |= {"lower": lower, "upper": upper}
    return table | {"corrected": corrected.mean, "corrected_std": corrected.std}


def kept(case: str) -> dict[str, Tensor]:
    """Weights, rows and answers as they were written."""
    return load_file(FOLDER / f"{case}.safetensors")


def refit(case: str) -> None:
    """Keep what a fit answers now in place of what was kept before."""
    table = {name: value for name, value in kept(case).items() if not name.startswith(("refit.", "answers."))}
    predicted = answers(case, fitted(case, table)[1], table)
    table |= {f"answers.{name}": value.contiguous() for name, value in predicted.items()}
    save_file(table, FOLDER / f"{case}.safetensors")


if __name__ == "__main__":
    for each in CASES:
        refit(each)
