"""Callbacks that write `model.trustgp` when training ends: for Lightning, and for Hugging Face.

    python examples/training_callbacks.py [--framework lightning|huggingface] [--epochs 20]

The error bar is fitted to the loaders that the trainer has, validation included; the network is left as it
was. Lightning needs `pip install lightning`, the Trainer `pip install transformers accelerate`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trustgp


def write(network: nn.Module, train: Any, path: Path, **options: Any) -> trustgp.UncertaintyModel:
    """Fit the error bar of a network in eval mode, save it, and restore the modes."""
    modes = [(part, part.training) for part in network.modules()]
    try:
        model = trustgp.fit(network.eval(), train, **options)
    finally:
        for part, mode in modes:
            part.training = mode
    model.save(path)
    return model


def lightning_callback(path: str | Path = "model.trustgp", **options: Any) -> Any:
    """A callback of Lightning; batches are (inputs, targets), and `forward` predicts. Options: of `fit`."""
    from lightning.pytorch import Callback

    class TrustCallback(Callback):
        model: trustgp.UncertaintyModel

        def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
            if trainer.is_global_zero:  # one of several processes
                held_out = trainer.val_dataloaders
                self.model = write(
                    pl_module, trainer.train_dataloader, Path(path), validation=held_out, **options
                )

    return TrustCallback()


def huggingface_callback(path: str | Path | None = None, **options: Any) -> Any:
    """A callback of the Trainer; batches are dicts with `labels`, the network returns `logits`. The default
    place is the output folder. Options: of `fit`."""
    from transformers import TrainerCallback

    class TrustCallback(TrainerCallback):
        model: trustgp.UncertaintyModel

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            if state.is_world_process_zero:
                rows = {"validation": parts.get("eval_dataloader"), "unpack": unpack, **options}
                where = Path(args.output_dir) / "model.trustgp" if path is None else Path(path)
                network, train = parts["model"], parts["train_dataloader"]
                self.model = write(network, train, where, select=lambda answer: answer["logits"], **rows)

    return TrustCallback()


def unpack(batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """(inputs, labels) of a batch."""
    inputs = {name: value.cpu() for name, value in batch.items() if name != "labels"}
    return inputs, batch["labels"].cpu()


class Regressor(nn.Module):
    """A network as the Trainer takes it: named inputs, a loss with labels, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layers(inputs)
        loss = {} if labels is None else {"loss": (logits - labels).square().mean()}
        return loss | {"logits": logits}


def rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A smooth function of three inputs, with noise of 0.1."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(n, 3, generator=generator) * 4 - 2
    return inputs, inputs.sum(dim=1, keepdim=True).sin() + 0.1 * torch.randn(n, 1, generator=generator)


def batches(n: int, seed: int) -> list[dict[str, Tensor]]:
    """The same as the Trainer takes them: a dict for each row."""
    return [{"inputs": x, "labels": y} for x, y in zip(*rows(n, seed), strict=True)]


def with_lightning(epochs: int) -> trustgp.UncertaintyModel:
    """A few epochs, then the callback."""
    from lightning.pytorch import LightningModule, Trainer

    class Lit(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layers(inputs)

        def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
            return (self(batch[0]) - batch[1]).square().mean()

        def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 1e-2)

    loaders = [
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(n, seed)), batch_size=50)
        for n, seed in ((200, 0), (100, 1))
    ]
    callback = lightning_callback(progress=False)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=epochs, callbacks=[callback], accelerator="cpu", **quiet).fit(Lit(), *loaders)
    return callback.model


def with_huggingface(epochs: int) -> trustgp.UncertaintyModel:
    """The same by the Trainer of Hugging Face."""
    from transformers import Trainer, TrainingArguments

    train, held_out = batches(200, 0), batches(100, 1)
    callback = huggingface_callback("model.trustgp", progress=False)
    options = TrainingArguments(
        output_dir="trained", num_train_epochs=epochs, per_device_train_batch_size=50, learning_rate=1e-2,
        use_cpu=True, report_to=[], save_strategy="no", eval_strategy="epoch", logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(Regressor(), options, train_dataset=train, eval_dataset=held_out, callbacks=[callback])
    trainer.train()
    return callback.model


def main(arguments: list[str] | None = None) -> trustgp.UncertaintyModel:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=["lightning", "huggingface"], default="lightning")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args(arguments)
    train = with_lightning if options.framework == "lightning" else with_huggingface
    model = train(options.epochs)
    print(model)
    print("novelty of new rows:", model.predict(rows(5, 2)[0]).novelty.tolist())
    return model


if __name__ == "__main__":
    main()
