"""Images of the classification study, every method on them, and what it writes down: tables and words."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trustgp import metrics

from ...core import cases
from ...core.cases import ENSEMBLE, IN_DOMAIN, METHOD, OURS, Case, Test, number, shares_between
from ...core.claim import Claim, at_most, words
from ...core.grid import Grid
from ...core.pivot import Measure, Pivot
from ...core.result import Column, Table
from ...datasets import Images, add_noise, load_images, rotate, uniform_noise
from ...peers.registry import Fitted
from ..runtime.rows import patterns

TRAINED = ("fashion_mnist", "mnist")
NAMES = {"fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}
VALIDATION = 5_000  # images split off the training images
DEGREES, QUICK_DEGREES = (15, 30, 45, 60, 90), (45,)
NOISES, QUICK_NOISES = (0.1, 0.2, 0.4), (0.2,)
UNIFORM = "uniform noise"
QUICK_ROWS = {"train": 240, "validation": 80, "test": 60}


def foreign_to(trained: str) -> str:
    """The other set of images."""
    return next(name for name in TRAINED if name != trained)


def make_images(trained: str, *, seed: int, quick: bool) -> Case:
    """Load, split by the seed, distort and scale.

    Pixels from 0 to 1 are scaled by the mean and the standard deviation of all training pixels, after
    they were distorted. Where it must be quick, some hundred images of each part, generated ones where there
    are no others.
    """
    whole, made = _load(trained, "train", quick)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    held = order[: QUICK_ROWS["validation"] if quick else VALIDATION]
    kept = order[len(held) :][: QUICK_ROWS["train"] if quick else None]
    pixels, labels = _floats(whole), whole.labels
    centre, spread = pixels[kept].mean(), pixels[kept].std()

    def scaled(images: Tensor) -> Tensor:
        return (images - centre) / spread

    test, other = (_load(name, "test", quick)[0] for name in (trained, foreign_to(trained)))
    familiar = _floats(test)
    tests: dict[str, Test] = {IN_DOMAIN: (scaled(familiar), test.labels)}
    tests[foreign_to(trained)] = scaled(_floats(other)), None
    if trained == "fashion_mnist":
        turned = {f"rotated {d}": rotate(familiar, d) for d in (QUICK_DEGREES if quick else DEGREES)}
        levels = QUICK_NOISES if quick else NOISES
        noisy = {f"noisy {level:g}": add_noise(familiar, level, seed=seed) for level in levels}
        tests |= {name: (scaled(images), test.labels) for name, images in (turned | noisy).items()}
        tests[UNIFORM] = scaled(uniform_noise(len(test), seed=seed)), None
    return Case((scaled(pixels[kept]), labels[kept]), (scaled(pixels[held]), labels[held]), tests, made)


def shifts_of(names: list[str]) -> list[str]:
    """The names of tests that show the trained images distorted."""
    return [name for name in names if name.startswith(("rotated", "noisy"))]


def _floats(images: Images) -> Tensor:
    """Pixels from 0 to 1, shape [n, 1, height, width]."""
    return images.pixels[:, None].float() / 255


def _load(name: str, part: str, quick: bool) -> tuple[Images, bool]:
    """The images, all of them or a few, and whether they are stand-ins."""
    if not quick:
        return load_images(name, part), False
    few = QUICK_ROWS["train"] + QUICK_ROWS["validation"] if part == "train" else QUICK_ROWS["test"]
    try:
        whole = load_images(name, part)
    except FileNotFoundError:  # enough to see that the study runs
        pixels, labels = patterns(few, TRAINED.index(name), seed=100 + len(part))
        return Images((255 * pixels[:, 0]).byte(), labels), True
    return Images(whole.pixels[:few], whole.labels[:few]), False


BARS = 40  # of a histogram
KEPT = 101  # points of a risk-coverage curve
SCORES = {"entropy": "entropy", "variance": "logit variance", "information": "mutual information"}
"""By what foreign images may be told: of the probabilities, of the logits, of members about the class."""
AXES = ("trained", "tested", "method")
NLL = Measure("nll", Column("NLL", digits=4, better="low"))
RIGHT = (
    NLL,
    Measure("ece", Column("ECE", digits=2, better="low", unit="%"), factor=100.0),
    Measure("accuracy", Column("accuracy", digits=2, better="high", unit="%"), factor=100.0),
    Measure("brier", Column("Brier", digits=4, better="low")),
    Measure("aurc", Column("AURC", digits=4, better="low")),
)
APART = tuple(
    Measure(f"{key}_{score}", Column(f"{name} by {told}", digits=4, better=better))
    for key, name, better in (("auroc", "AUROC", "high"), ("fpr95", "FPR95", "low"))
    for score, told in SCORES.items()
)
WHOLE = {
    "Probabilities on every labelled set of images": RIGHT,
    "Every set of images told from familiar ones": APART,
}
TEMPERATURE, SOFTMAX = "temperature scaling", "softmax"
WANTED = 0.99  # AUROC of the latent variance


def score_method(fitted: Fitted, tests: Mapping[str, Test], foreign: str, device: str) -> dict[str, Any]:
    """See `score_tests`; and curves to draw, of the `foreign` test set beside the familiar one."""
    curves: dict[str, Any] = {}
    familiar_labels = tests[IN_DOMAIN][1]
    assert familiar_labels is not None, "familiar images have labels"

    def score(name: str, known: Any, said: Any, labels: Tensor | None) -> dict[str, Any]:
        scores: dict[str, Any] = {}
        if labels is not None:
            scores = _right(said.probabilities, labels)
            # rows, mean confidence and share of right ones of each bin that is not empty
            bins = metrics.reliability_curve(said.probabilities, labels)
            curves[name] = {"reliability": [values[bins[0] > 0].tolist() for values in bins]}
        if name != IN_DOMAIN:
            familiar, strange = novelty_scores(known), novelty_scores(said)
            for one in SCORES:
                pair = (familiar[one], strange[one]) if one in familiar else None
                scores[f"auroc_{one}"] = number(metrics.auroc(*pair)) if pair else None
                scores[f"fpr95_{one}"] = number(metrics.fpr95(*pair)) if pair else None
            if name == foreign:
                wrong = (known.classes != familiar_labels.to(device)).double()
                curves[name] = _pair_curves(familiar, strange, wrong)
        return scores

    return {**cases.score_tests(fitted, tests, device, score), "curves": curves}


def novelty_scores(said: Any) -> dict[str, Tensor]:
    """What a prediction says about how foreign a row is, by `SCORES`, each [n]; only those it has."""
    entropy, information = metrics.entropy(said.probabilities), getattr(said, "mutual_information", None)
    found = zip(SCORES, (entropy, said.score, information), strict=True)
    return {name: value.double() for name, value in found if value is not None}


def _right(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """By the keys of `RIGHT`."""
    wrong = (probabilities.argmax(dim=1) != labels).double()
    rows = (metrics.class_nll, metrics.expected_calibration_error, metrics.accuracy, metrics.brier)
    values = [measure(probabilities, labels).mean() for measure in rows]
    values.append(metrics.selective_risk(1 - probabilities.amax(dim=1), wrong).mean())
    return {measure.key: number(value) for measure, value in zip(RIGHT, values, strict=True)}


def _pair_curves(
    familiar: dict[str, Tensor], strange: dict[str, Tensor], wrong: Tensor
) -> dict[str, dict[str, Any]]:
    """Histograms of either kind of images, and the risk of both together, foreign ones counted as wrong."""
    losses = torch.cat([wrong, torch.ones_like(strange["entropy"])])
    curves = {}
    for name, here in familiar.items():
        both = torch.cat([here, strange[name]])
        risk, edges = metrics.selective_risk(both, losses), _edges(both, even=name == "entropy")
        places = torch.linspace(0, len(risk) - 1, KEPT).round().long().to(risk.device)
        sides = {"in": shares_between(here, edges), "out": shares_between(strange[name], edges)}
        told = {"risk": risk[places].tolist(), "area": number(risk.mean())}
        curves[name] = {"edges": edges.tolist(), **sides, **told}
    return curves


def _edges(both: Tensor, *, even: bool) -> Tensor:
    """Of the bars, from the smallest to the largest number of both kinds: evenly, or by equal factors."""
    both = both[both.isfinite()]
    if even:
        return torch.linspace(0.0, max(float(both.max()), 1e-12), BARS + 1, dtype=torch.float64)
    both = both.clamp_min(max(1e-12, 1e-9 * float(both.max())))
    return torch.logspace(float(both.min().log10()), float(both.max().log10()) + 1e-9, BARS + 1).double()


def class_tables(grid: Grid, *more: Table) -> list[Table]:
    """In domain, foreign images, distorted images, what is given more, then everything."""
    shifts = {name: shifts_of(grid.along("tested", trained=name)) for name in grid.along("trained")}
    near, foreign, distorted, every = [], [], [], []
    for name, tests in shifts.items():
        at, named, other = {"trained": name}, NAMES[name], foreign_to(name)
        title = f"{named}: test images like those that trained"
        near.append(Pivot(title, METHOD, [cases.NETWORKS, *RIGHT], {**at, "tested": IN_DOMAIN}))
        title = f"Trained on {named}: is {NAMES[other]} told from it?"
        note = "A gap: the method has no such score. The variance of trustgp is its latent variance."
        foreign.append(Pivot(title, METHOD, APART, {**at, "tested": other}, note=note))
        if not tests:
            continue
        measures = [NLL.at(test, digits=3, tested=test) for test in tests]
        note = "Rotated by so many degrees; with Gaussian noise of so much std in every pixel from 0 to 1."
        distorted.append(Pivot(f"NLL on distorted {named}", METHOD, measures, at, note=note))
        for title, measures in WHOLE.items():
            title = f"{title}, trained on {named}"
            every.append(Pivot(title, cases.TESTED, measures, at, NAMES, block="tested on"))
    headline = [pivot.table(grid) for pivot in (*near, *foreign, *distorted)]
    return [*headline, *more, *(pivot.table(grid) for pivot in every)]


def class_findings(grid: Grid, costs: Grid) -> list[str]:
    """What the study shows, a sentence each; costs are the seconds of each method alone on the machine."""
    tests = {name: grid.along("tested", trained=name) for name in grid.along("trained")}
    found = [_told(grid, name, foreign_to(name)) for name in tests]
    found += [_told(grid, name, UNIFORM) for name in tests if UNIFORM in tests[name]]
    found += [claim.sentence for claim in claims(grid)]
    places = grid.along("trained", "tested")
    pairs = [[grid.values((*at, method), "accuracy") for method in (OURS, SOFTMAX)] for at in places]
    same = [ours == own for ours, own in pairs if ours is not None]
    each = {name: 1000 * costs.mean((name,), cases.PREDICT.key) for name in costs.along("method")}
    slowest = max((name for name in each if name != OURS), key=each.__getitem__)
    return [
        *found,
        f"trustgp has exactly the network's accuracy, in {sum(same)} of {len(same)} sets of labelled images.",
        f"trustgp took {costs.mean((OURS,), 'fit_seconds'):.1f} s to fit and {each[OURS]:.3f} ms an image; "
        f"the network alone {each[SOFTMAX]:.4f} ms, the slowest peer ({slowest}) {each[slowest]:.3f} ms.",
    ]


def claims(grid: Grid) -> list[Claim]:
    """Beside temperature scaling on familiar images, beside it and the ensemble on distorted ones."""
    near = {(name, IN_DOMAIN): NAMES[name] for name in grid.along("trained")}
    tests = {name: shifts_of(grid.along("tested", trained=name)) for name in grid.along("trained")}
    far = {(name, test): test for name, shifts in tests.items() for test in shifts}

    def claim(statement: str, places: Mapping[tuple, str], rival: str, key: str, form: str) -> Claim:
        pairs = {at: [grid.mean((*at, method), key) for method in (OURS, rival)] for at in places}
        return Claim(statement, [at_most(places[at], *pair, form=form) for at, pair in pairs.items()])

    like = "On images like those that trained, trustgp has no higher {} than temperature scaling"
    lower = "On distorted images trustgp has a lower NLL than {}"
    return [
        *(claim(like.format(key.upper()), near, TEMPERATURE, key, ".4f") for key in ("nll", "ece")),
        *(claim(lower.format(rival), far, rival, "nll", ".3f") for rival in (TEMPERATURE, ENSEMBLE)),
    ]


def _told(grid: Grid, trained: str, test: str) -> str:
    """Is the latent variance as good as wanted, and better than every score of every peer?"""
    at = (trained, test, OURS)
    value, own = (grid.mean(at, f"auroc_{score}") for score in ("variance", "entropy"))
    rivals = {
        (method, score): grid.mean((trained, test, method), f"auroc_{score}")
        for method in grid.along("method")
        for score in SCORES
        if method != OURS and grid.values((trained, test, method), f"auroc_{score}")
    }
    (method, score), best = max(rivals.items(), key=lambda entry: entry[1])
    bar = "at least" if value >= WANTED else "below"
    rank = "above" if value > best else "not above"
    return (
        f"Trained on {NAMES[trained]}, against {NAMES.get(test, test)}: the latent variance of trustgp has "
        f"an AUROC of {words(grid.spread(at, 'auroc_variance'), 4)}, {bar} {WANTED}, and {rank} every peer "
        f"(best: {method} by {SCORES[score]}, {best:.4f}). By the entropy of its probabilities it has "
        f"{own:.4f}."
    )
