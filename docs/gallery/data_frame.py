"""Your own data frame

A table of measurements in pandas, a network trained on it, and an error bar for every row of another table.
Polars works the same way.
"""

# %%
# **The table.** Here the power that a pump takes, with the units in the names of the columns; yours comes out
# of `pandas.read_csv`. A fifth of the rows is kept back: the network must not have seen them.
import numpy as np
import pandas
import torch
from matplotlib import pyplot
from torch import nn

import trustgp

chance = np.random.default_rng(0)
frame = pandas.DataFrame(
    {
        "speed_rpm": chance.uniform(800, 3000, 1500),
        "flow_m3h": chance.uniform(5, 60, 1500),
        "temperature_C": chance.normal(20, 5, 1500),
    }
)


def power(rows):  # what the network has to learn
    flow = 1 + (rows["flow_m3h"] / 40) ** 2
    return 0.002 * rows["speed_rpm"] * flow - 0.02 * rows["temperature_C"]


frame["power_kW"] = power(frame) * (1 + 0.03 * chance.standard_normal(1500))
held, train = frame.iloc[:300], frame.iloc[300:]
columns, target = ["speed_rpm", "flow_m3h", "temperature_C"], "power_kW"

# %%
# **The network** standardises by its first layer, so that it takes the table's own units. Anything that was
# done to the table before training must be done to new rows as well; inside the network it cannot be
# forgotten.
x, y = (torch.tensor(train[names].to_numpy(), dtype=torch.float32) for names in (columns, [target]))
first = nn.Linear(3, 3)
with torch.no_grad():
    first.weight.copy_(torch.diag(1 / x.std(0)))
    first.bias.copy_(-x.mean(0) / x.std(0))
torch.manual_seed(0)
network = nn.Sequential(first, nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))
optimiser = torch.optim.Adam(network[1:].parameters(), 1e-2)
for _ in range(800):
    optimiser.zero_grad()
    (network(x) - y[:, 0]).square().mean().backward()
    optimiser.step()
network.eval()

# %%
# **Fit on the columns**: those of the inputs, and the one of the targets.
model = trustgp.fit(
    network,
    (train[columns], train[target]),
    validation=(held[columns], held[target]),
    progress=False,
)

# %%
# **New rows**, the last two beyond anything in the table: a speed of 4,500 and a flow of 120.
new = pandas.DataFrame(
    {
        "speed_rpm": [1000, 2900, 4500, 2000],
        "flow_m3h": [10, 55, 30, 120],
        "temperature_C": [20.0, 18, 20, 25],
    }
)
p = model.predict(new)
lower, upper = p.interval(0.95)
answer = new.assign(power=p.mean, lower=lower, upper=upper, truth=power(new), novel=p.is_novel)
print(answer.to_string(float_format="%.1f"))

# %%
# Along the flow, at 2,000 rpm and 20 degrees:
line = pandas.DataFrame({"speed_rpm": 2000.0, "flow_m3h": np.linspace(0, 120, 200), "temperature_C": 20.0})
p = model.predict(line)
lower, upper = p.interval(0.95)
figure, axes = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
axes.plot(line["flow_m3h"], p.mean, label="network")
axes.fill_between(line["flow_m3h"], lower, upper, alpha=0.25, label="95 % interval")
axes.plot(line["flow_m3h"], power(line), "k--", lw=1, label="truth")
axes.axvspan(5, 60, color="grey", alpha=0.1, label="flows in the table")
axes.set(xlabel="flow, m³/h", ylabel="power, kW", title="Inside and outside the table")
axes.legend(loc="upper left", fontsize="small")

# %%
# Both rows from outside the table are called novel, as they should be. How wrong the network is there is told
# only roughly: at a flow of 120 the truth lies far above the interval.

# %%
# **When not to use it.** Columns that the network ignores cannot make a row novel. Text and categories must
# become numbers first, in the frame or in the network. For a table without a network, gradient boosting with
# conformal intervals may be all you need.
