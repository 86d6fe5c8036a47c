"""One ONNX file on a robot

Network and error bar become one graph in one file. The robot needs onnxruntime, and neither torch nor
trustgp.
"""

# %%
# **The model**, on the machine where the network was trained.
import numpy as np
import onnxruntime
import torch
from torch import nn

import trustgp

torch.manual_seed(0)
inputs = torch.rand(500, 2) * 4 - 2
targets = inputs[:, :1] * inputs[:, 1:].cos() + 0.05 * torch.randn(500, 1)
network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimiser = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(400):
    optimiser.zero_grad()
    (network(inputs[:350]) - targets[:350]).square().mean().backward()
    optimiser.step()
rows, held_out = (inputs[:350], targets[:350]), (inputs[350:], targets[350:])
model = trustgp.fit(network.eval(), rows, validation=held_out, num_experts=2, progress=False)
model.threshold(false_alarm=0.02)  # adds `is_novel` to the file

# %%
# **Write it.** onnxruntime runs the graph and is compared with `predict` before the file is written.
names, units = ["angle", "speed"], ["N m"]
trustgp.export_onnx(model, "arm.onnx", inputs[:8], input_names=names, output_units=units)

# %%
# **On the robot**: numpy and onnxruntime; in C++, C# and JavaScript it is the same. A broken sensor gives an
# infinite variance and `valid` False.
session = onnxruntime.InferenceSession("arm.onnx", providers=["CPUExecutionProvider"])
outputs, (source,) = [output.name for output in session.get_outputs()], session.get_inputs()
for row in ([0.1, 0.2], [3.5, 0.2], [np.nan, 0.2]):
    answer = dict(zip(outputs, session.run(None, {source.name: np.array([row], np.float32)}), strict=True))
    mean, std = float(answer["mean"][0, 0]), float(answer["variance"][0, 0]) ** 0.5
    print(row, f"{mean:.2f} ± {std:.2f} N m, novel {answer['is_novel'][0]}, valid {answer['valid'][0]}")

# %%
# **The whole plane**, from the file. Crosses are training rows, the line is the limit of what is novel.
side = np.linspace(-4, 4, 80, dtype=np.float32)
plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
answer = dict(zip(outputs, session.run(None, {source.name: plane}), strict=True))
with trustgp.plots.figure("standard_deviation_and_limit_of_novelty.png", width=6, height=4) as page:
    axes, std = page.subplots(), np.sqrt(answer["variance"]).reshape(80, 80)
    page.colorbar(axes.pcolormesh(side, side, std, cmap="cividis"), label="standard deviation, N m")
    axes.contour(side, side, answer["is_novel"].reshape(80, 80), [0.5], colors="white")
    axes.plot(*inputs[:350].T, "wx", ms=2)
    axes.set(xlabel="angle, rad", ylabel="speed, rad/s")

# %%
# **When not to use it.** Half-precision networks and code that depends on numbers (`if x.sum() > 0`) cannot
# be exported; the error names the layer ([what can](../export.md#what-can-be-exported)). The file contains
# the training rows in some form: protect it as you protect the data.
