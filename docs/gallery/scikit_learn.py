"""In a scikit-learn pipeline

`trustgp.sklearn.TrustRegressor` is an estimator around a function that trains a network. It goes into
pipelines, cross-validation and grid search, and `predict(X, return_std=True)` returns the error bar.
"""

# %%
# **The data** come with scikit-learn: the progression of diabetes after a year, from ten measurements.
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from trustgp.plots import BLUE, INK, figure
from trustgp.sklearn import TrustRegressor

X, y = load_diabetes(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=100, random_state=0)


# %%
# **A function that makes and trains a network** from two tensors. `fit` calls it, so that cross-validation
# scores a network on rows that it was not trained on.
def trained(inputs, targets):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    nn.init.constant_(network[2].bias, float(targets.mean()))
    optimiser = torch.optim.Adam(network.parameters(), 0.05, weight_decay=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        (network(inputs) - targets).square().mean().backward()
        optimiser.step()
    return network.eval()


# %%
# **A pipeline**, and a search over an option of the fit.
pipeline = make_pipeline(StandardScaler(), TrustRegressor(trained))
search = GridSearchCV(pipeline, {"trustregressor__num_experts": [1, 2]}, cv=3).fit(X, y)
print("chosen:", search.best_params_, f"R2 on new patients: {search.score(X_test, y_test):.2f}")
mean, std = search.best_estimator_.predict(X_test, return_std=True)
inside = (abs(y_test - mean) <= 2 * std).mean()
print(f"{inside:.0%} of the new patients are within two standard deviations")

with figure("new_patients_with_their_error_bars.png", width=8, height=3.4) as page:
    axes, order = page.subplots(), mean.argsort()
    bars = {"fmt": "o", "ms": 3, "lw": 0.8, "color": BLUE, "label": "prediction ± 2 std"}
    axes.errorbar(range(100), mean[order], 2 * std[order], **bars)
    axes.plot(range(100), y_test[order], "x", color=INK, ms=4, label="truth")
    axes.set(xlabel="new patients, in the order of their predictions", ylabel="disease progression")
    page.legend(loc="outside upper center", ncols=2)

# %%
# **When not to use it.** With 342 rows and ten columns, a plain `GaussianProcessRegressor` is simpler and as
# good. Each fit of a search trains a network and fits its error bar: keep grids small. For loaders,
# checkpoints and GPUs call `trustgp.fit`.
