"""An ONNX file with an error bar inside, served by onnxruntime on one thread.

    python examples/serve_onnx.py [--file arm.onnx] [--calls 2000] [--rows 4000]

It trains a small network on the simulated arm, fits the error bar and exports both; then `serve` answers row
by row. That function needs numpy and onnxruntime only: it is what runs on the robot.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np


def serve(path: Path, rows: np.ndarray) -> list[float]:
    """Answers rows [n, d] one by one; returns the seconds that each took."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    facts = session.get_modelmeta().custom_metadata_map
    print(f"trustgp {facts['trustgp.version']}, threshold of the novelty score {facts['trustgp.threshold']}")
    (given,) = session.get_inputs()
    names = ["mean", "variance", "novelty", "valid", "is_novel"]
    rows = rows.astype({"tensor(float)": np.float32, "tensor(double)": np.float64}[given.type])
    took = []
    for number, row in enumerate(rows):
        start = time.perf_counter()
        found = dict(zip(names, session.run(names, {given.name: row[None]}), strict=True))
        took.append(time.perf_counter() - start)
        if number < 3:
            std = np.sqrt(found["variance"][0])
            state = "invalid" if not found["valid"][0] else "novel" if found["is_novel"][0] else "ok"
            print(f"row {number}: {state}, novelty {found['novelty'][0]:.3f}, std {np.round(std, 2)}")
    return took


def main(arguments: list[str] | None = None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=Path("arm.onnx"))
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=4000, help="to train on")
    options = parser.parse_args(arguments)

    import torch

    import trustgp
    from trustgp_experiments.datasets import simulate

    train, held, test = (
        simulate(rows=n, seed=s) for n, s in ((options.rows, 0), (500, 1), (options.calls, 2))
    )
    spread = train.targets.std(dim=0)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(21, 64), torch.nn.ReLU(), torch.nn.Linear(64, 7))
    optimiser = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(200):
        optimiser.zero_grad()
        (network(train.inputs) - train.targets / spread).square().mean().backward()
        optimiser.step()
    rows, validation = ((part.inputs, part.targets / spread) for part in (train, held))
    model = trustgp.fit(network.eval(), rows, validation=validation, budget="8 MiB")
    model.threshold(false_alarm=0.01)
    trustgp.export_onnx(model, options.file, train.inputs[:20])

    took = np.sort(serve(options.file, test.inputs.numpy()))
    median, late = 1e6 * np.median(took), 1e6 * took[int(0.99 * len(took))]
    print(f"{len(took)} calls: median {median:.0f} us, p99 {late:.0f} us")
    return model


if __name__ == "__main__":
    main()
