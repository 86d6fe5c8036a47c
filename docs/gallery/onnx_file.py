"""One ONNX file for network and error bar

The network and its error bar become one graph in one file. What runs it on the robot needs onnxruntime, and
neither Python nor torch nor trustgp.
"""

# %%
import numpy as np
import onnxruntime
import torch
from matplotlib import pyplot
from torch import nn

import trustgp

generator = torch.Generator().manual_seed(0)
inputs = torch.rand(500, 2, generator=generator) * 4 - 2
targets = (inputs[:, :1] * inputs[:, 1:].cos()) + 0.05 * torch.randn(500, 1, generator=generator)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(400):
    optimiser.zero_grad()
    (network(inputs[:350]) - targets[:350]).square().mean().backward()
    optimiser.step()
model = trustgp.fit(
    network.eval(),
    (inputs[:350], targets[:350]),
    validation=(inputs[350:], targets[350:]),
    num_experts=2,
    progress=False,
)
model.threshold(false_alarm=0.02)  # puts `is_novel` into the file

# %%
# **Write it.** Before the file is kept it is run in onnxruntime and compared with `predict`.
path = trustgp.export_onnx(
    model,
    "arm.onnx",
    inputs[:8],
    input_names=["angle", "speed"],
    output_units=["Nm"],
    calibration_date="2026-01-31",
)
print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")

# %%
# **Run it**, here from Python, but nothing below is trustgp's: C++, C# and JavaScript look the same.
session = onnxruntime.InferenceSession("arm.onnx", providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
(given,) = session.get_inputs()
side = np.linspace(-4, 4, 80, dtype=np.float32)
plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
plane[0, 0] = np.nan  # a broken sensor
answer = dict(zip(names, session.run(names, {given.name: plane}), strict=True))
print("outputs:", *names)
print("the broken row: valid", bool(answer["valid"][0]), "variance", answer["variance"][0, 0])
p = model.predict(torch.tensor(plane[1:]))
print(f"largest relative difference: {np.max(np.abs(answer['variance'][1:] / p.variance.numpy() - 1)):.1e}")

# %%
figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
std = np.sqrt(answer["variance"]).reshape(80, 80)
figure.colorbar(
    axes[0].pcolormesh(side, side, std, vmax=np.nanquantile(std[np.isfinite(std)], 0.99)), ax=axes[0]
)
axes[0].plot(*inputs[:350].T, "w.", ms=2)
axes[0].set(title="Standard deviation, from the file", xlabel="angle", ylabel="speed")
axes[1].pcolormesh(side, side, answer["is_novel"].reshape(80, 80), cmap="Reds", vmax=1.5)
axes[1].plot(*inputs[:350].T, "k.", ms=2)
axes[1].set(title="Called novel", xlabel="angle")

# %%
# **When not to use it.** Half-precision networks and code that looks at numbers (`if x.sum() > 0`) cannot be
# exported; the error names the layer ([what can](../export.md#what-can-be-exported)). The file holds the
# training rows in some form: keep it as you keep the data. `examples/serve_onnx.py` in the repository serves
# such a file row by row and takes the time.
