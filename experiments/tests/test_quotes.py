"""Every measured figure on a page comes from a stored result: blocks are what the code makes of it today."""

import json
import math
import tomllib
from pathlib import Path

import pytest

from trustgp_experiments.report.quotes import __main__ as command
from trustgp_experiments.report.quotes.blocks import BLOCKS
from trustgp_experiments.report.quotes.comparisons import StoredCase, better_than_ours
from trustgp_experiments.report.quotes.elsewhere import calls, classes, sequences
from trustgp_experiments.report.quotes.front import tally
from trustgp_experiments.report.quotes.pages import BLOCK, loose, pages, rewritten
from trustgp_experiments.report.quotes.stored import Stored, bullets, grid, number, short

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"
ALLOWED = tomllib.loads((Path(__file__).parent / "allowed_figures.toml").read_text(encoding="utf-8"))
PAGES = {str(page.relative_to(ROOT)): page for page in pages(ROOT)}
EVERYWHERE = ALLOWED.pop("*")
KINDS = ("setting", "formula", "size", "version", "published", "example", "name")


@pytest.fixture(scope="module")
def stored():
    return Stored(EXPERIMENTS)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_its_results_say(page, stored):
    text = PAGES[page].read_text(encoding="utf-8")
    assert rewritten(text, BLOCKS, stored) == text, "python -m trustgp_experiments.report.quotes --write"


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_stands_outside_a_block(page):
    found = loose(PAGES[page].read_text(encoding="utf-8"), EVERYWHERE | ALLOWED.get(page, {}))
    assert [f"line {one.line}: {one.figure!r} in {one.text!r}" for one in found] == []


def test_what_is_allowed_is_there_and_has_a_reason():
    wrong = []
    for page, texts in ALLOWED.items():
        text = PAGES[page].read_text(encoding="utf-8")
        wrong += [f"{page}: {one!r} is not there" for one in texts if one not in text]
        wrong += [f"{page}: {one!r}: {why!r}" for one, why in texts.items() if why.split(":")[0] not in KINDS]
    assert wrong == []


def test_every_block_is_on_a_page_or_is_the_findings_of_a_study():
    used = {match["name"] for page in PAGES.values() for match in BLOCK.finditer(page.read_text())}
    assert {name for name in BLOCKS if not name.startswith("findings.")} <= used


# --- how pages are read ------------------------------------------------------------------------


def test_a_block_is_replaced_and_the_rest_stays():
    page = "before\n<!-- from: a -->\nold\n<!-- /from -->\nafter 1.5\n"
    made = rewritten(page, {"a": lambda _: "new\n"}, Stored(EXPERIMENTS))
    assert made == "before\n<!-- from: a -->\nnew\n<!-- /from -->\nafter 1.5\n"
    assert rewritten(made, {"a": lambda _: "new\n"}, Stored(EXPERIMENTS)) == made


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("<!-- from: nobody -->\n<!-- /from -->", KeyError),
        ("<!-- from: a -->\nopen", ValueError),
        ("<!-- from: a -->\n<!-- from: a -->\n<!-- /from -->\n<!-- /from -->", ValueError),
    ],
)
def test_unknown_and_broken_blocks_are_refused(page, error):
    with pytest.raises(error):
        rewritten(page, {"a": lambda _: ""}, Stored(EXPERIMENTS))


def test_a_study_that_was_not_run_is_said_to_be_missing(tmp_path):
    page = "<!-- from: findings.toy -->\n<!-- /from -->"
    assert "study `toy` is yet to be run" in rewritten(page, BLOCKS, Stored(tmp_path))
    for name in BLOCKS:
        text = rewritten(f"<!-- from: {name} -->\n<!-- /from -->", BLOCKS, Stored(tmp_path))
        assert len(text.splitlines()) >= 3, name


@pytest.mark.parametrize(
    "text",
    [
        "an NLL of -1.741",
        "covers 95 %",
        "1e-3",
        "3.4 times",
        "ten times as fast",
        "took 15 s",
        "2 ms",
        "64 MiB",
        "12 nats",
        "2.1 GB",
        "0.9 ± 0.1",
        "in 6 of 8 cases",
        ".25",
        "| 4.5 |",
        "8 hours",
    ],
)
def test_what_looks_measured_is_found(text):
    assert list(loose(f"Words, {text}, words.", {}))


@pytest.mark.parametrize(
    "text",
    [
        "512 rows",
        "`budget=64 MiB`",
        "[a page](v1.2.md)",
        "one of 3 kinds",
        "```\n1.5 s\n```",
        "<!-- 1.5 -->",
        "<!-- from: a -->\n1.5 s\n<!-- /from -->",
        "seeds 0 to 4",
        "    ```sh\n    1.5\n    ```",
    ],
)
def test_code_links_blocks_and_counts_are_not(text):
    assert list(loose(f"Words\n\n{text}\n\nwords", {})) == []


def test_allowed_texts_allow_only_themselves():
    (one,) = loose("the 95 % interval\ncovers 93 % of them", {"95 % interval": "setting"})
    assert (one.line, one.figure) == (2, "3 %")


def test_the_command_says_what_differs_and_writes_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "README.md"
    page.write_text("<!-- from: findings.toy -->\n<!-- /from -->\n")
    monkeypatch.setattr("sys.argv", ["quotes", "--root", str(tmp_path)])
    assert command.main() == 1
    monkeypatch.setattr("sys.argv", ["quotes", "--root", str(tmp_path), "--write"])
    assert command.main() == 0
    assert "yet to be run" in page.read_text()
    assert "README.md" in capsys.readouterr().out


# --- numbers and words -------------------------------------------------------------------------


def case(**nll):
    seeds = [
        {
            "methods": {
                m: {"fit_seconds": 2.0, "tests": {"in domain": {"nll": v}}}
                for m, v in zip(nll, row, strict=True)
            }
        }
        for row in zip(*nll.values(), strict=True)
    ]
    return StoredCase({"trained": "arm", "split": "random"}, seeds)


def test_only_peers_that_are_lower_beyond_the_interval_are_named_the_furthest_first():
    found = case(
        trustgp=[1.0, 1.1, 0.9],
        near=[0.9, 1.0, 0.8],
        far=[0.0, 0.1, -0.1],
        unsure=[0.0, 2.0, 0.5],
        trustgp_paper=[-9.0, -9.0, -9.0],
    )
    assert [name for name, _ in better_than_ours(found, "trustgp")] == ["far", "near"]


def test_numbers_of_a_case_are_of_a_test_or_of_the_method():
    found = case(trustgp=[1.0, 2.0])
    assert found.values("trustgp", "nll") == [1.0, 2.0]
    assert found.mean("trustgp", "fit_seconds") == 2.0
    assert found.values("trustgp", "crps") is None
    assert found.name == "arm random"


def test_numbers_as_text():
    assert [number(v, 1) for v in (None, math.nan, math.inf, -0.25)] == ["", "", "infinite", "-0.2"]
    assert [short(v) for v in (None, 0, 0.01234, 12.34, 12345.6)] == ["", "0", "0.0123", "12.3", "12,346"]
    assert grid(["a", "b|c"], [["1", "2"]]) == "| a | b/c |\n| --- | --- |\n| 1 | 2 |"
    assert max(map(len, bullets(["word " * 90]).splitlines())) <= 150


def test_results_of_more_methods_and_seeds_are_taken_as_they_come(tmp_path):
    """A stored study with another method and five seeds, as a later run brings."""
    result = json.loads((EXPERIMENTS / "results" / "transfer" / "result.json").read_text())
    for run in result["numbers"]["runs"]:
        run["seeds"] = (run["seeds"] * 2)[:5]
        for seed in run["seeds"]:
            seed["methods"]["heteroscedastic ensemble of 5"] = seed["methods"]["ensemble of 5"] | {
                "mebibytes": 3.0
            }
            seed["methods"]["Laplace GLM"]["tests"]["in domain"]["nll"] = "inf"  # as a study stores it
            seed["methods"]["conformal, split"] = {
                "tests": {"in domain": {"coverage": 0.95}},
                "fit_seconds": 1.0,
            }
    (tmp_path / "results" / "transfer").mkdir(parents=True)
    (tmp_path / "results" / "transfer" / "result.json").write_text(json.dumps(result))
    text = BLOCKS["readme.table"](Stored(tmp_path))
    assert "| heteroscedastic ensemble of 5 | -" in text
    assert "| conformal, split |  |  | 95.0 %" in text
    assert "| Laplace GLM | infinite | infinite |" in text
    assert "MiB" in text
    assert "heteroscedastic" in BLOCKS["readme.loses"](Stored(tmp_path))


def _stored(folder, study, methods, cases, **about):
    """A study's folder with three seeds of each case; `methods` gives those of a seed."""
    sizes = {"train": 100, "in domain": 20}
    seeds = [{"sizes": sizes, "methods": methods(s)} for s in (0.0, 0.01, 0.02)]
    numbers = {"runs": [{"trained": case, **about, "seeds": seeds} for case in cases]}
    folder = folder / "results" / study
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"numbers": numbers}))


def test_classes_are_lost_where_a_peer_tells_better_or_is_likelier_beyond_the_interval(tmp_path):
    def tests(nll, letters, clouds):
        told = {"letters": {"auroc": letters}, "clouds": {"auroc": clouds}}
        return {"tests": {"in domain": {"nll": nll}, **told}}

    def methods(s):  # energy is ahead on letters in every seed, five on clouds in two of three
        found = {"trustgp": tests(0.3 + s, 0.9 + s, 0.9), "energy": tests(0.4 + s, 0.95 + s, None)}
        return found | {"five": tests(0.2 + s, 0.8, 0.899 + s)}

    _stored(tmp_path, "classification", methods, ["mnist"])
    likely, told, meant = classes(Stored(tmp_path))
    assert "1 sets of images" in likely
    assert "lower NLL have `five` in 1, by most `five` by 0.100 (MNIST)." in likely
    assert "2 sets of novel images: higher AUROC have `energy` in 1, by most `energy` by 0.050" in told
    assert "(MNIST, letters)" in told
    assert "in 1 of 2 sets, by most MNIST, clouds (0.900, `five` 0.909)." in meant
    assert classes(Stored(tmp_path / "nothing")) == []


def test_sequences_are_lost_on_new_motions_and_on_other_arms(tmp_path):
    def methods(s):
        def tests(near, far):
            return {"tests": {"in domain": {"nll": near + s}, "kuka": {"nll": far + s}}}

        return {"trustgp": tests(0.3, 2.0), "five": tests(0.2, 3.0), "SWAG": tests(0.4, 1.5)}

    _stored(tmp_path, "sequence", methods, ["sarcos"])
    (told,) = sequences(Stored(tmp_path))
    assert "new motions (1 cases): lower NLL have `five` in 1, by most `five` by 0.10 (sarcos)" in told
    assert (
        "other arms (1 cases): lower NLL have `SWAG` in 1, by most `SWAG` by 0.50 (sarcos on kuka)." in told
    )
    assert sequences(Stored(tmp_path / "nothing")) == []


def test_only_test_rows_that_are_drawn_widen_the_interval():
    seeds = [{"sizes": {"train": 100, "in domain": 20}, "methods": {}}]
    assert StoredCase({}, seeds).overlap() == 0.2
    assert StoredCase({}, seeds).overlap("letters") == 0
    assert StoredCase({}, seeds, drawn=False).overlap() == 0


def test_a_tally_counts_worse_alike_and_better_by_split_and_on_other_arms(tmp_path):
    def methods(s):
        def tests(near, far):
            return {"tests": {"in domain": {"nll": near + s}, "kuka": {"nll": far + s}}}

        return {
            "trustgp": tests(0.3, 2.0),
            "ensemble of 5": tests(0.2, 3.0),
            "Laplace GLM": tests(0.3 - 2 * s, 1.0),
            "conformal, split": {"tests": {"in domain": {"coverage": 0.95}, "kuka": {"coverage": 0.5}}},
        }

    _stored(tmp_path, "transfer", methods, ["sarcos"], split="unseen")
    lines = tally(Stored(tmp_path)).splitlines()
    assert lines[0] == "| against | same arm, unseen | other arms, unseen |"
    assert lines[2:] == [
        "| ensemble of 5 | 1 / 0 / 0 | 0 / 0 / 1 |",
        "| Laplace GLM | 0 / 1 / 0 | 1 / 0 / 0 |",
    ]


def test_dear_calls_are_those_of_one_row_that_take_longer_than_five_networks(tmp_path):
    def entry(runtime, over, **more):
        one = {"method": "trustgp default", "runtime": runtime, "over_ensemble": over}
        return {**one, "batch": 1, "threads": 1, **more}

    entries = [entry("torch eager", 1.5), entry("onnxruntime", 0.5), entry("torch graph", None)]
    entries += [entry("torch eager", 9.0, batch=64), entry("torch eager", 9.0, method="trustgp small")]
    folder = tmp_path / "results" / "runtime"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(
        json.dumps({"numbers": {"networks": {"MLP": [{"entries": entries}]}}})
    )
    (told,) = calls(Stored(tmp_path))
    assert told.endswith("in the same runtime: in 1 of 2 on a CPU, by most 1.5 times (MLP in torch eager).")
    assert calls(Stored(tmp_path / "nothing")) == []
