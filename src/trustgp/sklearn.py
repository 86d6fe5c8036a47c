"""scikit-learn estimators: a network and its error bar in pipelines, cross-validation and grid search."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor, nn
from typing_extensions import Self

from .api import fit
from .data.frames import precision_of
from .data.quantities import BudgetText
from .data.split import in_proportion
from .likelihoods import Classification, Likelihood, MultiLabel, Regression
from .likelihoods.prediction import Prediction
from .model import UncertaintyModel
from .tangents import Tangents
from .tangents.modules import unwrap

Networks = nn.Module | Sequence[nn.Module]  # one, or several whose mean predicts
Network = Networks | Callable[[Tensor, Tensor], Networks]  # trained, or a function that trains
VALIDATION_SHARE = 0.1  # default for a network that is trained in `fit`
OWN = ("network", "train", "likelihood", "groups", "weights", "num_experts", "tangents", "budget", "seed")


class _TrustEstimator(BaseEstimator):
    """The base of the estimators; see `TrustRegressor`."""

    LIKELIHOOD: ClassVar[Likelihood]
    MIN_VALIDATION_ROWS: ClassVar[int]  # by default none are held out if there are fewer

    model_: UncertaintyModel  # the fitted model
    network_: Networks  # the given or trained network, or list of them
    _targets: Any  # from y and a dtype to targets for the likelihood

    def __init__(
        self,
        network: Network,
        *,
        num_experts: int | None = None,
        tangents: Tangents | None = None,
        budget: BudgetText = None,
        validation_fraction: float | None = None,
        random_state: int | np.random.RandomState | None = 0,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.network, self.num_experts, self.tangents, self.budget = network, num_experts, tangents, budget
        self.validation_fraction, self.random_state = validation_fraction, random_state
        self.fit_options = fit_options

    def prediction(self, X: Any) -> Prediction:
        """`model_.predict` of rows [n, d], on the CPU: intervals, novelty, distributions."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return self.model_.predict(torch.tensor(X, dtype=_dtype(self.network_))).cpu()

    def _fit(self, X: np.ndarray, y: np.ndarray, groups: Any, weights: Any) -> UncertaintyModel:
        """Fit the error bar of a given network, or of one trained here; rows of weight 0 are dropped."""
        options, seed = dict(self.fit_options or {}), self.random_state
        groups = None if groups is None else np.asarray(groups)
        check_consistent_length(X, groups)
        if weights is not None:
            weights = _check_sample_weight(weights, X, ensure_non_negative=True)
            kept = weights > 0
            X, y, weights = X[kept], y[kept], weights[kept]
            groups = None if groups is None else groups[kept]
        allowed = [name for name in signature(fit).parameters if name not in OWN]
        if wrong := sorted(set(options) - set(allowed)):
            raise ValueError(f"fit_options holds {', '.join(wrong)}; allowed are {', '.join(allowed)}.")
        seed = int(seed if isinstance(seed, Integral) else check_random_state(seed).randint(2**31 - 1))
        validation: Any = options.pop("validation", None)
        trained = unwrap(self.network)
        trained = trained if isinstance(trained, (nn.Module, list, tuple)) else None
        held_out = np.zeros(len(X), dtype=bool)
        if trained is None and validation is None:
            held_out = self._held_out(y, groups, seed)
        elif self.validation_fraction is not None:
            raise ValueError("validation_fraction= is for networks trained in `fit` without validation rows.")
        kept = None if weights is None else weights[~held_out]
        self.network_ = self._train(X[~held_out], y[~held_out], kept, seed) if trained is None else trained
        dtype = _dtype(self.network_)

        def rows(X: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
            return torch.tensor(X, dtype=dtype), self._targets(y, dtype)

        if validation is not None:
            inputs: Any = validate_data(self, validation[0], reset=False, dtype=np.float64)
            check_consistent_length(*validation)
            options["validation"] = rows(inputs, np.asarray(validation[1]))
        elif held_out.any():
            chosen = np.flatnonzero(held_out)
            if weights is not None:
                chosen = chosen[in_proportion(torch.from_numpy(weights[chosen])).numpy()]
            options["validation"] = rows(X[chosen], y[chosen])
        options |= {"num_experts": self.num_experts, "tangents": self.tangents, "budget": self.budget}
        options |= {"likelihood": self.LIKELIHOOD, "seed": seed}
        options |= {"groups": None if groups is None else groups[~held_out], "weights": kept}
        return fit(self.network_, rows(X[~held_out], y[~held_out]), **{"progress": False, **options})

    def _train(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None, seed: int) -> Networks:
        """The network of the user's function; torch's random state is seeded, and restored afterwards."""
        network, dtype = self.network, torch.get_default_dtype()
        trainer: Any = getattr(network, "fit", network)
        takes = weights is not None and "sample_weight" in signature(trainer).parameters
        if hasattr(network, "fit") and hasattr(network, "predict"):  # a perceptron, not yet trained
            perceptron: Any = clone(network)
            more = {"sample_weight": weights} if takes else {}
            network = unwrap(perceptron.fit(X, self._targets(y, torch.float64).numpy(), **more))
        elif callable(network):
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                more = {"sample_weight": torch.tensor(weights, dtype=dtype)} if takes else {}
                network = network(torch.tensor(X, dtype=dtype), self._targets(y, dtype), **more)
        if not isinstance(network, (nn.Module, list, tuple)):
            kind = f"a {type(network).__name__}" + (" was returned" if callable(self.network) else "")
            raise TypeError(
                f"network: {kind}; a torch.nn.Module, a function (X, y) of one, or an MLPRegressor or "
                "MLPClassifier is needed."
            )
        return network

    def _held_out(self, y: np.ndarray, groups: np.ndarray | None, seed: int) -> np.ndarray:
        """Mask of the held-out rows, bool [n]: whole groups, if there are groups."""
        share = self.validation_fraction
        if share is None:
            share = VALIDATION_SHARE if VALIDATION_SHARE * len(y) >= self.MIN_VALIDATION_ROWS else 0.0
        if not 0 <= share < 1:
            raise ValueError(f"validation_fraction={share}; it must be between 0 (none) and 1.")
        units = np.arange(len(y)) if groups is None else np.unique(groups, return_inverse=True)[1]
        order = np.random.default_rng(seed).permutation(int(units.max()) + 1)
        return self._keep_classes(np.isin(units, order[: int(share * len(order))]), units, y)

    def _keep_classes(self, held_out: np.ndarray, units: np.ndarray, y: np.ndarray) -> np.ndarray:
        return held_out


def _dtype(network: Networks) -> torch.dtype:
    """Dtype of the parameters; for several networks, that of the first."""
    return precision_of(network if isinstance(network, nn.Module) else network[0])


class TrustRegressor(RegressorMixin, _TrustEstimator):
    """A regressor with an error bar: `predict(X, return_std=True)`.

    After `fit`, `model_` is the `trustgp.UncertaintyModel` and `network_` its network, with which a
    saved `model_` is loaded. Rows are real numbers [n, d].

    Args:
        network: A function `network(X, y)`, or `network(X, y, sample_weight)`, that trains a network on
            tensors X [n, d] and y [n] or [n, C], and returns it, or a list of several, in eval mode; or an
            `MLPRegressor` that is not yet trained. Or a trained `torch.nn.Module`, a list, or a trained
            `MLPRegressor`: the rows of `fit` are then its training rows, as in `trustgp.fit`, so
            cross-validation scores it on training rows. It is not changed.
        num_experts, tangents, budget: As for `trustgp.fit`.
        validation_fraction: Share of the rows of `fit` that is held out from the function and used to
            calibrate; whole groups if there are groups. None: a tenth if that is 20 rows or more, else none.
            Not for a trained network.
        random_state: The seed of the error bar, and of torch's random numbers within the function; None:
            another seed each time.
        fit_options: Other options of `trustgp.fit`, such as {"witness": None}; "validation" is (X, y).

    Examples:
        >>> regressor = trustgp.sklearn.TrustRegressor(network).fit(inputs, targets)
        >>> mean, std = regressor.predict(inputs, return_std=True)
    """

    LIKELIHOOD: ClassVar[Likelihood] = Regression()
    MIN_VALIDATION_ROWS: ClassVar[int] = 20

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Train the network, if it is a function, and fit its error bar.

        Args:
            X: Inputs [n, d]; for a trained network its training inputs.
            y: Targets [n] or [n, C].
            groups: Trajectory label of each row [n]; a trajectory is held out as a whole.
            sample_weight: `weights` of `trustgp.fit` [n]; rows of weight 0 are dropped.
        """
        checks = {"multi_output": True, "y_numeric": True, "dtype": np.float64, "ensure_min_samples": 2}
        X, y = validate_data(self, X, y, **checks)
        self.model_, self._flat = self._fit(X, y, groups, sample_weight), y.ndim == 1
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The network's own outputs, in the shape of y; with `return_std` also their standard deviations."""
        p, shape = self.prediction(X), () if self._flat else (-1,)
        mean, std = (value.reshape((len(value), *shape)).numpy() for value in (p.mean, p.std))
        return (mean, std) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the intervals that hold the targets with probability `level`, each in the shape of y."""
        ends, shape = self.prediction(X).interval(level), () if self._flat else (-1,)
        lower, upper = (value.reshape((len(value), *shape)).numpy() for value in ends)
        return lower, upper

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _targets(self, y: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.tensor(np.asarray(y, dtype=np.float64), dtype=dtype)


class TrustClassifier(ClassifierMixin, _TrustEstimator):
    """A classifier with calibrated probabilities: `predict_proba`.

    Labels may be of any type. The network returns a logit for each class, in the order of `labels_`, or one
    logit for two classes. After `fit`, `classes_` are the labels, sorted, in the order of the columns of
    `predict_proba`; `model_` and `network_` are as for `TrustRegressor`.

    Args:
        network: As for `TrustRegressor`; its y are class numbers 0, 1, ..., int64 [n].
        classes: The labels in the order of the network's logits. None: those in y, sorted; pass them if y may
            lack some, as in the folds of a cross-validation.
        validation_fraction: As for `TrustRegressor`; None: a tenth if that is 5 rows or more. Every class
            keeps a training row.
        others: As for `TrustRegressor`.

    Examples:
        >>> estimator = trustgp.sklearn.TrustClassifier(classifier).fit(inputs, kinds)
        >>> probabilities = estimator.predict_proba(inputs)
    """

    LIKELIHOOD: ClassVar[Likelihood] = Classification()
    MIN_VALIDATION_ROWS: ClassVar[int] = 5

    classes_: np.ndarray  # the labels, sorted
    labels_: np.ndarray  # the labels in the order of the logits

    def __init__(
        self,
        network: Network,
        *,
        num_experts: int | None = None,
        tangents: Tangents | None = None,
        budget: BudgetText = None,
        classes: Sequence[Any] | None = None,
        validation_fraction: float | None = None,
        random_state: int | np.random.RandomState | None = 0,
        fit_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = {"num_experts": num_experts, "tangents": tangents, "budget": budget}
        options |= {"validation_fraction": validation_fraction, "random_state": random_state}
        super().__init__(network, fit_options=fit_options, **options)
        self.classes = classes

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fit as `TrustRegressor.fit` does, with labels y [n]."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        given = getattr(self.network, "classes_", None) if self.classes is None else self.classes
        self.labels_ = np.unique(y) if given is None else np.asarray(given)
        self.classes_ = np.unique(self.labels_)
        if len(self.classes_) < 2 or len(self.classes_) < len(self.labels_):
            raise ValueError(f"the classes are {self.labels_.tolist()}; pass two different ones at least.")
        model = self._fit(X, y, groups, sample_weight)
        if max(2, logits := model.shape.outputs) != len(self.classes_):
            what = f"the network has {logits} logits, and there are {len(self.classes_)} classes"
            raise ValueError(f"{what}; pass classes=, the labels in the order of the logits.")
        self.model_ = model
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The labels of the network's largest logits, shape [n]."""
        classes = self.prediction(X).classes.numpy()  # first: it refuses an estimator that is not fitted
        return self.labels_[classes]

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of `classes_`, less confident on novel inputs, shape [n, C]."""
        return self.prediction(X).probabilities.numpy()[:, np.argsort(self.labels_)]

    def _targets(self, y: np.ndarray, dtype: torch.dtype) -> Tensor:
        positions = np.searchsorted(self.classes_, y).clip(max=len(self.classes_) - 1)
        if (unknown := self.classes_[positions] != y).any():
            raise ValueError(f"y holds {y[unknown][0]!r}; the classes are {self.labels_.tolist()}.")
        return torch.from_numpy(np.argsort(self.labels_)[positions])

    def _keep_classes(self, held_out: np.ndarray, units: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Held-out mask without the units of classes that would have no training row left."""
        return held_out & ~np.isin(units, units[np.isin(y, np.setdiff1d(y[held_out], y[~held_out]))])


class TrustLabelClassifier(ClassifierMixin, _TrustEstimator):
    """A classifier for several labels per row, with calibrated probabilities: `predict_proba`.

    y [n, C] holds a 0 or 1 for each label, and the network returns a logit for each.

    Args:
        network: As for `TrustRegressor`; its y are 0 and 1, int64 [n, C].
        others: As for `TrustRegressor`; validation_fraction None: a tenth if that is 5 rows or more.

    Examples:
        >>> estimator = trustgp.sklearn.TrustLabelClassifier(tagger).fit(inputs, tags)
        >>> probabilities = estimator.predict_proba(inputs)
    """

    LIKELIHOOD: ClassVar[Likelihood] = MultiLabel()
    MIN_VALIDATION_ROWS: ClassVar[int] = 5

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Fit as `TrustRegressor.fit` does, with labels y [n, C]."""
        X, y = validate_data(self, X, y, multi_output=True, dtype=np.float64, ensure_min_samples=2)
        if (kind := type_of_target(y)) != "multilabel-indicator" or not np.isin(y, (0, 1)).all():
            raise ValueError(f"y is {kind}; a 0 or 1 for each of several labels is needed, [n, C].")
        self.model_, self.classes_ = self._fit(X, y, groups, sample_weight), np.arange(y.shape[1])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Whether the network's logits are positive, 0 or 1, shape [n, C]."""
        return (self.prediction(X).mean.numpy() > 0).astype(np.int64)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each label, shape [n, C]."""
        return self.prediction(X).probabilities.numpy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = tags.classifier_tags.multi_label = True
        tags.target_tags.single_output = tags.classifier_tags.multi_class = False
        return tags

    def _targets(self, y: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.asarray(y).astype(np.int64))
