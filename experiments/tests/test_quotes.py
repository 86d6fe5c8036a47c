"""Every measured figure on a page comes from a stored result: blocks are what the code makes of it today."""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

from trustgp_experiments.core.storage import read_numbers
from trustgp_experiments.report.quotes import __main__ as command
from trustgp_experiments.report.quotes import published
from trustgp_experiments.report.quotes.blocks import BLOCKS, table
from trustgp_experiments.report.quotes.comparisons import StoredCase
from trustgp_experiments.report.quotes.pages import BLOCK, pages, rewritten
from trustgp_experiments.report.quotes.sentences import cifar
from trustgp_experiments.report.quotes.stored import NotRun, Stored, bullets, grid, number, short

tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # which pytest brings
ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"
ALLOWED = tomllib.loads((Path(__file__).parent / "allowed_figures.toml").read_text(encoding="utf-8"))
PAGES = {str(page.relative_to(ROOT)): page for page in pages(ROOT)}
EVERYWHERE = ALLOWED.pop("*")
STORED = Stored(EXPERIMENTS)
KINDS = ("setting", "formula", "size", "version", "published", "example", "name")
CODE = re.compile(r"^( *)(```|~~~).*?^ *\2 *$", re.DOTALL | re.MULTILINE)
# What cannot be a measured statement: code in a line, where a link leads, a comment, a footnote's number.
SILENT = re.compile(r"`[^`\n]+`|\]\([^)\n]*\)|<!--.*?-->|<[^>\n]+>", re.DOTALL)
COUNT = r"(?:\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|hundred|thousand)"
UNIT = r"(?:s|ms|µs|us|seconds?|milliseconds?|minutes?|hours?|[kKMGT]i?B|bytes|nats?|Hz|FPS)"
FIGURE = re.compile(
    rf"\d*\.\d+|\d ?%|\d+e-?\d+|±|\b\d[\d,]* of (?:the )?\d|\b{COUNT} times\b|\b{COUNT} {UNIT}\b"
    r"|\bhalf an? (?:second|minute|hour)\b",
    re.IGNORECASE,
)


def loose(page: str, allowed: Iterable[str]) -> Iterator[str]:
    """Figures outside blocks and code, with line and text; those within the allowed texts do not count."""
    bare = _blank(_blank(page, BLOCK), CODE)
    for text in allowed:
        bare = bare.replace(text, " " * len(text))
    bare = _blank(bare, SILENT)
    lines = page.splitlines()
    for match in FIGURE.finditer(bare):
        line = bare.count("\n", 0, match.start())
        yield f"line {line + 1}: {match[0]!r} in {lines[line].strip()!r}"


def _blank(text: str, pattern: re.Pattern) -> str:
    """Without what matches; lines stay where they are."""
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_quotes_its_results_and_no_other_figure(page):
    text = PAGES[page].read_text(encoding="utf-8")
    assert rewritten(text, BLOCKS, STORED) == text, "python -m trustgp_experiments.report.quotes --write"
    assert "yet to be run" not in text
    assert list(loose(text, EVERYWHERE | ALLOWED.get(page, {}))) == []


def test_allowed_figures_are_on_their_pages_with_a_reason_and_every_block_is_used():
    texts = {name: page.read_text(encoding="utf-8") for name, page in PAGES.items()}
    wrong = []
    for page, allowed in ALLOWED.items():
        wrong += [f"{page}: {one!r} is missing" for one in allowed if one not in texts[page]]
        reasons = allowed.items()
        wrong += [f"{page}: {one!r}: {why!r}" for one, why in reasons if why.split(":")[0] not in KINDS]
    assert wrong == []
    used = {match["name"] for text in texts.values() for match in BLOCK.finditer(text)}
    assert {name for name in BLOCKS if not name.startswith("findings.")} <= used


def test_a_block_is_replaced_and_the_rest_stays():
    page = "before\n<!-- from: a -->\nold\n<!-- /from -->\nafter 1.5\n"
    made = rewritten(page, {"a": lambda _: "new\n"}, STORED)
    assert made == "before\n<!-- from: a -->\nnew\n<!-- /from -->\nafter 1.5\n"
    assert rewritten(made, {"a": lambda _: "new\n"}, STORED) == made
    nested = "<!-- from: a -->\n<!-- from: a -->\n<!-- /from -->\n<!-- /from -->"
    with pytest.raises(KeyError):
        rewritten("<!-- from: nobody -->\n<!-- /from -->", {"a": lambda _: ""}, STORED)
    for broken in ("<!-- from: a -->\nopen", nested):
        with pytest.raises(ValueError):
            rewritten(broken, {"a": lambda _: ""}, STORED)


def test_a_block_of_a_study_that_was_not_run_says_so(tmp_path):
    page = "<!-- from: findings.toy -->\n<!-- /from -->"
    assert "study `toy` is yet to be run" in rewritten(page, BLOCKS, Stored(tmp_path))
    for name in BLOCKS:
        text = rewritten(f"<!-- from: {name} -->\n<!-- /from -->", BLOCKS, Stored(tmp_path))
        assert len(text.splitlines()) >= 3, name


def test_published_figures_have_ours_beside_them_where_a_table_is_stored(monkeypatch):
    scores = {"mse": 0.01, "nll": -1.5}
    one = {"methods": {"trustgp": {"tests": {"in domain": scores}}}, "sizes": {"in domain": 1, "train": 9}}
    case = StoredCase(about={"table": "bike"}, seeds=[one, one])
    monkeypatch.setattr(published, "stored_cases", lambda *_: [case])
    shown = published.table(STORED)
    assert "| exact GP, published | 0.074 / -0.37 |" in shown
    assert "| trustgp, here | 0.100 / -1.50 |" in shown
    assert "ensemble" not in shown


def test_what_looks_measured_is_found_and_code_links_blocks_and_counts_are_not():
    measured = ["an NLL of -1.741", "covers 95 %", "1e-3", "3.4 times", "ten times as fast", "took 15 s"]
    measured += ["2 ms", "64 MiB", "12 nats", "2.1 GB", "0.9 ± 0.1", "in 6 of 8 cases", ".25", "| 4.5 |"]
    measured += ["8 hours"]
    assert [text for text in measured if not list(loose(f"Words, {text}, words.", {}))] == []
    other = ["512 rows", "`budget=64 MiB`", "[a page](v1.2.md)", "one of 3 kinds", "```\n1.5 s\n```"]
    other += ["seeds 0 to 4", "<!-- 1.5 -->", "    ```sh\n    1.5\n    ```"]
    other += ["<!-- from: a -->\n1.5 s\n<!-- /from -->"]
    assert [text for text in other if list(loose(f"Words\n\n{text}\n\nwords", {}))] == []
    (one,) = loose("the 95 % interval\ncovers 93 % of them", {"95 % interval": "setting"})
    assert one.startswith("line 2: '3 %'")


def test_the_command_prints_what_differs_and_writes_it(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    page.write_text("<!-- from: findings.toy -->\n<!-- /from -->\n")
    for more, status in (([], 1), (["--write"], 0)):
        monkeypatch.setattr("sys.argv", ["quotes", "--root", str(tmp_path), *more])
        assert command.main() == status
    assert "yet to be run" in page.read_text()
    assert "README.md" in capsys.readouterr().out


def test_a_table_shows_mean_and_spread_in_its_digits_and_a_gap_as_nothing(tmp_path):
    columns = [{"name": name, "digits": digits, "unit": unit} for name, digits, unit in
               (("method", -1, ""), ("AUROC", 3, ""), ("caught", 1, "%"))]  # fmt: skip
    rows = [["a", [0.98765, 0.00123], None], ["b", 0.5, [12.34, 0.5]]]
    made = {"title": "T", "columns": columns, "rows": rows, "note": "So it is."}
    store(tmp_path, "classification", tables=[made])
    expected = ["| method | AUROC | caught, % |", "| --- | --- | --- |", "| a | 0.988 ± 0.001 |  |"]
    expected += ["| b | 0.500 | 12.3 ± 0.5 |", "", "So it is."]
    assert table(Stored(tmp_path), title="T").splitlines() == expected
    with pytest.raises(NotRun, match="present form"):
        table(Stored(tmp_path), title="another")


def store(root, name, /, **result) -> None:
    folder = root / "results" / name
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))


def test_numbers_as_text():
    assert [number(v, 1) for v in (None, math.nan, math.inf, -0.25)] == ["", "", "infinite", "-0.2"]
    assert [short(v) for v in (None, 0, 0.01234, 12.34, 12345.6)] == ["", "0", "0.0123", "12.3", "12,346"]
    assert grid(["a", "b|c"], [["1", "2"]]) == "| a | b/c |\n| --- | --- |\n| 1 | 2 |"
    assert max(map(len, bullets(["word " * 90]).splitlines())) <= 150


@pytest.mark.parametrize(("new", "known"), [(-20, 20), (20, -20)])
def test_a_sentence_flips_with_its_numbers_and_the_least_favourable_comes_first(tmp_path, new, known):
    """The NLL of ours is moved, down where it shall win and up where it shall lose."""
    for other in (EXPERIMENTS / "results").iterdir():
        (tmp_path / "results").mkdir(exist_ok=True)
        if other.name != "transfer":
            (tmp_path / "results" / other.name).symlink_to(other)
    result = json.loads((EXPERIMENTS / "results" / "transfer" / "result.json").read_text())
    result["numbers"] = read_numbers(EXPERIMENTS / "results" / "transfer")
    for run in result["numbers"]["runs"]:
        for seed in run["seeds"]:
            for score in seed["methods"]["trustgp"]["tests"].values():
                score["nll"] += new if run["split"] == "new motions" else known
    store(tmp_path, "transfer", **result)
    text = " ".join(BLOCKS["results.sentences"](Stored(tmp_path)).split())
    relation = {-20: "ahead of", 20: "behind"}
    places = [
        text.index(f"By NLL on {what}, trustgp is **{relation[shift]}** its strongest rival")
        for what, shift in (("known motions, which measures memory", known), ("new motions", new))
    ]
    assert (places[0] < places[1]) == (known > new)
    assert len(re.findall(r"(?:^| )\d+\. [A-Z]", text)) == 10


@pytest.mark.parametrize(("shift", "counts"), [(-1.0, "0 / 0 / 4"), (1.0, "4 / 0 / 0"), (None, "0 / 4 / 0")])
def test_the_sentence_about_published_figures_follows_ours(tmp_path, shift, counts):
    """Ours are moved, or have spreads so wide that nothing can be said."""
    found = json.loads((EXPERIMENTS / "results" / "benchmarks" / "cifar-cuda.json").read_text())
    for figures in found["figures"].values():
        scores = figures["means and deviations"]["default"]
        scores |= {key: [m + (shift or 0), 9.0 if shift is None else s] for key, (m, s) in scores.items()}
    (tmp_path / "results" / "benchmarks").mkdir(parents=True)
    (tmp_path / "results" / "benchmarks" / "cifar-cuda.json").write_text(json.dumps(found))
    assert f"worse / alike / better in {counts} (" in cifar(Stored(tmp_path)).text
