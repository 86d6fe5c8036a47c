"""In a scikit-learn pipeline

`trustgp.sklearn.TrustRegressor` is an estimator around a network: it goes into pipelines, cross-validation
and grid search, and `predict(X, return_std=True)` gives the error bar.
"""

# %%
# **The data**, which come with scikit-learn: how far diabetes has progressed after a year, from ten
# measurements.
import torch
from matplotlib import pyplot
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from trustgp.sklearn import TrustRegressor

X, y = load_diabetes(return_X_y=True)
X, X_test, y, y_test = train_test_split(
    X.astype("float32"), y.astype("float32"), test_size=100, random_state=0
)

# %%
# **A function that makes and trains a network** from rows: it is called by `fit`, so that in cross-validation
# no row is seen before it is tested.


def trained(inputs, targets, width=32):
    inputs, targets = torch.as_tensor(inputs), torch.as_tensor(targets).reshape(-1)
    torch.manual_seed(0)
    body, last = nn.Sequential(nn.Linear(inputs.shape[1], width), nn.Tanh()), nn.Linear(width, 1)
    nn.init.constant_(last.bias, float(targets.mean()))
    network = nn.Sequential(body, last, nn.Flatten(0))
    optimiser = torch.optim.Adam(network.parameters(), 0.05, weight_decay=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        (network(inputs) - targets).square().mean().backward()
        optimiser.step()
    return network.eval()


# %%
# **A pipeline**, and a search over what goes into the fit of the error bar.
pipeline = make_pipeline(StandardScaler(), TrustRegressor(network=trained))
search = GridSearchCV(pipeline, {"trustregressor__num_experts": [1, 2]}, cv=3)
search.fit(X, y)
print("chosen:", search.best_params_, f"R2 on new patients: {search.score(X_test, y_test):.2f}")
mean, std = search.best_estimator_.predict(X_test, return_std=True)
inside = (abs(y_test - mean) <= 2 * std).mean()
print(f"{inside:.0%} of the new patients within two standard deviations")

# %%
figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
order = mean.argsort()
axes.errorbar(
    range(100), mean[order], 2 * std[order], fmt="o", ms=3, lw=0.8, capsize=0, label="network, ± 2 std"
)
axes.plot(range(100), y_test[order], "kx", ms=4, label="truth")
axes.set(xlabel="new patients, by prediction", ylabel="progression", title="Error bars out of a pipeline")
axes.legend(fontsize="small")

# %%
# **When not to use it.** With 342 rows and ten columns, a plain `GaussianProcessRegressor` is simpler and as
# good. Each fit of a search trains a network and fits its error bar: keep grids small. For loaders, groups,
# checkpoints and GPUs call `trustgp.fit` itself.
