"""A pandas table

A table of measurements, a network trained on it, and an interval for every row of another table. Polars
works the same way.
"""

# %%
# **The table**: the power that a pump takes; yours comes from `pandas.read_csv`. A fifth of the rows is held
# out: the network must not be trained on them.
import numpy as np
import pandas
import torch
from torch import nn

import trustgp
from trustgp.plots import GREY, INK, draw_band, figure


def power(table):  # what the network has to learn
    return 0.002 * table["speed_rpm"] * (1 + (table["flow_m3h"] / 40) ** 2) - 0.02 * table["heat_C"]


draw, columns = np.random.default_rng(0), ["speed_rpm", "flow_m3h", "heat_C"]
table = pandas.DataFrame(draw.uniform([800, 5, 5], [3000, 60, 35], (1500, 3)), columns=columns)
table["power_kW"] = power(table) * (1 + 0.03 * draw.standard_normal(1500))
held_out, train = table[:300], table[300:]

# %%
# **The network** takes the table's own units, since its first layer standardises them.
x, y = (torch.tensor(train[names].to_numpy(), dtype=torch.float32) for names in (columns, ["power_kW"]))
torch.manual_seed(0)
network = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 1))
optimiser = torch.optim.Adam(network.parameters(), 2e-2)
for _ in range(800):
    optimiser.zero_grad()
    (network(x) - y).square().mean().backward()
    optimiser.step()
network.eval()

# %%
# **Fit on the columns.** The last two new rows are outside the table: a speed of 4,500 and a flow of 120.
held_out = held_out[columns], held_out[["power_kW"]]
model = trustgp.fit(network, (train[columns], train[["power_kW"]]), validation=held_out, progress=False)
new = pandas.DataFrame([[1000, 10, 20], [2900, 55, 18], [4500, 30, 20], [2000, 120, 25]], columns=columns)
p = model.predict(new)
lower, upper = (end[:, 0] for end in p.interval(0.95))
answer = new.assign(power=p.mean[:, 0], lower=lower, upper=upper, truth=power(new), novel=p.is_novel)
print(answer.to_string(float_format="%.1f"))

# %%
# **Along the flow**, at 2,000 rpm and 20 degrees:
line = pandas.DataFrame({"speed_rpm": 2000.0, "flow_m3h": np.linspace(0, 120, 200), "heat_C": 20.0})
flow, p = torch.tensor(line["flow_m3h"]), model.predict(line)
half = p.interval(0.95)[1] - p.mean
with figure("power_inside_and_outside_the_table.png", width=8, height=3.2) as page:
    axes = page.subplots()
    axes.axvspan(5, 60, color=GREY, alpha=0.15, lw=0, label="flows in the table")
    draw_band(axes, flow, p.mean[:, 0], half[:, 0], label="95 % interval", line="network")
    axes.plot(flow, power(line), "--", color=INK, lw=1, label="truth")
    axes.set(xlabel="flow, m³/h", ylabel="power, kW")
    page.legend(loc="outside upper center", ncols=4)

# %%
# Both rows outside the table are flagged as novel. The interval there is approximate.

# %%
# **When not to use it.** Columns that the network ignores cannot make a row novel. Text and categories must
# become numbers first, in the table or in the network. For a table without a network, gradient boosting with
# conformal intervals may be enough.
