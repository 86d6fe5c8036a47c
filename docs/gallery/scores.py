"""Is the error bar right?

One call scores a model on rows it has not seen: likelihood, coverage, whether the largest errors have the
largest bars, and whether foreign rows are told apart. One more call draws it.
"""

# %%
import torch
from torch import nn

import trustgp

generator = torch.Generator().manual_seed(0)
inputs = torch.rand(1500, 3, generator=generator) * 4 - 2
noise = 0.05 + 0.2 * (inputs[:, :1] > 0)  # the right half is noisier
targets = inputs[:, :1].sin() * inputs[:, 1:2] + noise * torch.randn(1500, 1, generator=generator)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimiser = torch.optim.Adam(network.parameters(), 3e-3)
for _ in range(400):
    optimiser.zero_grad()
    (network(inputs[:600]) - targets[:600]).square().mean().backward()
    optimiser.step()
model = trustgp.fit(
    network.eval(),
    (inputs[:600], targets[:600]),
    validation=(inputs[600:900], targets[600:900]),
    num_experts=4,
    progress=False,
)

# %%
# **The table.** Foreign rows are the same ones, moved away from the middle.
evaluation = trustgp.evaluate(model, (inputs[900:], targets[900:]), 2 * inputs[900:], progress=False)
print(evaluation)

# %%
# **The pictures**: intervals that miss are red; calibration below the dashed line is too sure; sparsification
# near the oracle is good; foreign rows should stand to the right.
trustgp.plots.overview(evaluation, "overview_of_an_evaluation.png", dpi=110)

# %%
# **Beside one constant error bar**, the least that any method must beat:
p = model.predict(inputs[900:])
residual = (network(inputs[600:900]) - targets[600:900]).square().mean()
constant = trustgp.metrics.gaussian_nll(p.mean, residual.expand_as(p.mean), targets[900:]).mean()
print(f"NLL of trustgp {evaluation.nll:.3f}, about its corrected mean {evaluation.corrected.nll:.3f}")
print(f"NLL of one constant error bar {constant:.3f}")

# %%
# **When not to believe it.** Scores are about these rows. If the robot will make other motions, or the camera
# see other scenes, score on such rows: on rows like the training rows nearly every error bar looks right.
