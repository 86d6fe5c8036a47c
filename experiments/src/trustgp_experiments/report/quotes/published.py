"""UCI tables beside published figures of Gaussian processes on the inputs."""

from .comparisons import CORRECTED, OURS, stored_cases
from .stored import Stored, grid, number, words

# RMSE and NLL of standardised targets, 90 % of the rows train, means of five seeds: the README of the code of
# Maddox, Potapczynski and Wilson, Low-Precision Arithmetic for Fast Gaussian Processes, UAI 2022. Exact: by
# conjugate gradients in single precision.
PUBLISHED = {
    "pol": {"exact GP": (0.117, -0.349), "SVGP": (0.140, -0.513)},
    "elevators": {"exact GP": (0.364, 0.515), "SVGP": (0.374, 0.437)},
    "bike": {"exact GP": (0.074, -0.371), "SVGP": (0.077, -1.020)},
    "kin40k": {"exact GP": (0.099, 0.235), "SVGP": (0.165, -0.327)},
}
HERE = ("network + noise, tails", "ensemble of 5", "ARD GP on inputs", OURS, CORRECTED)
ABOUT = (
    "RMSE / NLL of standardised targets. Published: Maddox, Potapczynski and Wilson (UAI 2022), Gaussian "
    "processes on the inputs with ARD kernels, means of five splits of their own. Here: public splits, and a "
    "tenth of the training rows calibrates."
)


def table(stored: Stored) -> str:
    """Table with a row for each method and a column for each stored data set."""
    stored_tables = {case.name: case for case in stored_cases(stored, "tables") if case.name in PUBLISHED}
    names = list(stored_tables or PUBLISHED)
    rows = [[f"{p}, published", *(_cell(*PUBLISHED[name][p]) for name in names)] for p in PUBLISHED[names[0]]]
    for method in HERE if stored_tables else ():
        pairs = [[case.mean(method, key) for key in ("mse", "nll")] for case in stored_tables.values()]
        cells = ["" if mse is None else _cell(mse**0.5, nll) for mse, nll in pairs]
        rows += [[f"{method}, here", *cells]] if any(cells) else []
    return f"{grid(['', *names], rows)}\n\n{words(ABOUT)}"


def _cell(rmse: float, nll: float | None) -> str:
    return f"{number(rmse, 3)} / {number(nll)}"
