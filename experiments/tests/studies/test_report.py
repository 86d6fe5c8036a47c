"""The report: what the page contains, and what a browser makes of it."""

import io
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

import trustgp
from trustgp.cli import main
from trustgp_experiments import studies
from trustgp_experiments.core.result import Column, Figure, Result, Setting, StudyError, Table, provenance
from trustgp_experiments.report.page import prose, read_results, render, write_report
from trustgp_experiments.report.table import sort_value

EVIL = """<script>window.bad = 1</script>"><img src=x onerror="window.bad=1">'&`<b>`"""
METHODS = ("constant noise", "ensemble of 5", "MC-dropout", "rLaplace", "trustgp", "trustgp corrected")
SPLITS = ("sarcos, random", "sarcos, blocks of time", "barrett", "kuka")


def png(width: int, height: int) -> bytes:
    """A picture of one grey."""
    content = io.BytesIO()
    Image.new("L", (width, height), 192).save(content, "PNG")
    return content.getvalue()


SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 20"><rect width="40" height="20"/></svg>'


def score(place: int) -> float:
    """Numbers in no order."""
    return ((place * 7919) % 101) / 10 - 4


def long_table() -> Table:
    """60 rows in four groups."""
    columns = [Column("data", -1), Column("method", -1), Column("NLL", 2, "low")]
    columns += [Column("coverage", 1, unit="%"), Column("AUROC", 3, "high")]
    columns += [Column(f"torque {n}", 2) for n in range(1, 8)]
    rows = []
    for number in range(60):
        split, method = SPLITS[number // 15], f"{METHODS[number % 6]}, form {number % 15}"
        nll = None if number % 10 == 3 else [score(number), 0.05]
        rows.append([split, method, nll, 90 + score(number), None, *([score(number)] * 7)])
    return Table("Every cell", columns, rows, block="data", note="In units of `std`.")


def short_table() -> Table:
    columns = [Column("neighbours", -1), Column("NLL", 2, "low")]
    rows = [["10 of them", [-1.5, 0.2]], ["9 of them", 3.0], ["none", None], ["0.5 of them", -20.25]]
    return Table("A short one", columns, rows)


def write_study(folder: Path, study: str, *, quick: bool = False, **fields) -> Path:
    setting = Setting(folder / study, quick=quick)
    defaults = {"title": f"What of {study}?", "protocol": ["Rows in plain words."], "findings": ["It holds."]}
    origin = provenance(setting, study, splits={"random": [0.8, 0.2], "by_time": True})
    return Result(study, **{**defaults, "provenance": origin, **fields}).write(setting.out)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Two studies, a long table, two figures."""
    folder = tmp_path_factory.mktemp("results")
    figures = [Figure("wide.png", "Small multiples", "A panel each."), Figure("line.svg", "A line")]
    write_study(folder, "transfer", tables=[short_table(), long_table()], figures=figures)
    write_study(folder, "scale", tables=[short_table()])
    (folder / "transfer" / "wide.png").write_bytes(png(1300, 500))
    (folder / "transfer" / "line.svg").write_text(SVG)
    return folder


@pytest.fixture(scope="module")
def page(results) -> Path:
    return write_report(results)


class Elements(HTMLParser):
    """Start tags with their attributes, and whether every element is closed where it should be."""

    VOID = ("meta", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag == name]


def table_html(table: Table) -> str:
    """The table's part of the page."""
    whole = render({Path(): Result("toy", "A title", [], [table])})
    return re.search(r'<section class="table".*?</section>', whole, re.DOTALL)[0]


def test_prose_is_escaped_and_a_number_keeps_its_spread_and_its_percent():
    assert prose("run `a < b` now & then") == "run <code>a &lt; b</code> now &amp; then"
    assert prose("a lone ` stays") == "a lone ` stays"
    assert prose("an \x1bescape") == "an \\x1bescape"
    kept = "so 1.2_±_0.3 and 95_% of it".replace("_", "\N{NO-BREAK SPACE}")
    assert prose("so 1.2 ± 0.3 and 95 % of it") == kept


def test_cells_are_sorted_by_their_leading_number():
    values = {"16 experts": 16.0, "-0.5": -0.5, "10,000 rows": 10_000.0, "1e-3 rate": 1e-3, ".25": 0.25}
    values |= {"ours": None, "form 2": None, 3: 3.0, None: None, (2.5, 1.0): 2.5}
    assert {cell: sort_value(cell) for cell in values} == values


def test_the_page_is_well_formed_with_unique_ids_and_contains_all_that_it_shows(page):
    elements = Elements(page.read_text())
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = [link["href"] for link in elements.all("a")]
    assert len(links) > 5
    assert {link.removeprefix("#") for link in links} <= set(ids)
    pairs = [pair for _, given in elements.found for pair in given.items()]
    sources = [value for name, value in pairs if name in ("src", "href")]
    assert all(value.startswith(("data:image/", "#")) for value in sources)
    assert not elements.all("link")
    policy = next(m["content"] for m in elements.all("meta") if "http-equiv" in m)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    assert "url(" not in page.read_text()


def test_the_page_has_figures_with_alternative_text_and_names_its_origin(results, page, tmp_path):
    text = page.read_text()
    pictures = [picture for picture in Elements(text).all("img") if "src" in picture]
    assert [picture["alt"] for picture in pictures] == ["Small multiples. A panel each.", "A line"]
    assert pictures[0]["src"].startswith("data:image/png;base64,")
    assert (pictures[0]["width"], pictures[0]["height"]) == ("1300", "500")
    assert pictures[1]["src"].startswith("data:image/svg+xml;base64,")
    origin = (trustgp.__version__, "0, 1, 2", "CPU", "random (0.8, 0.2), by_time yes")
    for part in ("trustgp study transfer --seeds 3", *origin):
        assert part in text
    assert 'class="warning"' not in text
    assert write_report(results, tmp_path / "new" / "other.html").read_bytes() == page.read_bytes()


def test_studies_are_in_their_order_and_a_quick_one_has_a_warning(tmp_path):
    for name in ("mine", "scale", "toy", "another", "ablation"):
        write_study(tmp_path, name, quick=name == "toy")
    found = [result.study for result in read_results(tmp_path).values()]
    assert found == ["toy", "ablation", "scale", "another", "mine"]
    text = write_report(tmp_path).read_text()
    assert text.count('class="warning"') == 2  # on top, and at the study
    assert "figures mean nothing" in text


@pytest.fixture
def evil(tmp_path) -> Path:
    """A page of a result that has a script wherever text is allowed."""
    table = Table(EVIL, [Column(EVIL, -1), Column("b" + EVIL, unit=EVIL)], [[EVIL, 1.0]] * 2, EVIL, EVIL)
    figure = Figure("a.png", EVIL, EVIL)
    origin = {"command": EVIL, "commit": EVIL, EVIL: {EVIL: [EVIL]}}
    words = {"title": EVIL, "protocol": [EVIL], "findings": [EVIL]}
    setting = Setting(tmp_path / "evil")
    Result(EVIL, tables=[table], figures=[figure], provenance=origin, **words).write(setting.out)
    (setting.out / "a.png").write_bytes(png(4, 4))
    return write_report(tmp_path)


def test_a_table_is_grouped_its_best_numbers_are_bold_and_a_long_one_has_a_filter():
    table, html = long_table(), table_html(long_table())
    assert re.findall(r'class="group"><th[^>]*><span>(.*?)</span>', html) == list(SPLITS)
    assert html.count("<tbody>") == 4
    bold = [row for row in re.findall(r"<tr.*?</tr>", html) if "<strong>" in row]
    assert len(bold) == 4
    for split, row in zip(SPLITS, bold, strict=True):
        best = min(cells[2][0] for cells in table.rows if cells[0] == split and cells[2])
        assert f"<strong>{best:.2f}<span" in row
    assert 'type="search"' in html
    for word in ("group", 'type="search"'):
        assert word not in table_html(short_table())
    for table in (Table("Empty", [], []), Table("Empty", [Column("a")], [])):
        Elements(table_html(table))


def test_a_wrong_folder_is_explained(tmp_path, results):
    with pytest.raises(StudyError, match=r"holds no results.*trustgp study all --out"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StudyError, match="give the folder around it"):
        write_report(results / "transfer")
    with pytest.raises(FileNotFoundError):
        write_report(tmp_path / "none")


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("a.png", None, "is missing"),
        ("a.png", b"", "damaged"),
        ("a.png", b"<svg/>" * 9, "not a PNG"),
        ("a.pdf", b"%PDF", r"only \.png and \.svg"),
    ],
)
def test_a_figure_that_cannot_be_shown_is_named(tmp_path, file, content, words):
    write_study(tmp_path, "toy", figures=[Figure(file, "A figure")])
    if content is not None:
        (tmp_path / "toy" / file).write_bytes(content)
    with pytest.raises(StudyError, match=rf"{file}.*{words}"):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


DOCUMENT = (Path(__file__).parents[2] / "docs" / "studies.md").read_text()


def test_the_commands_of_the_document_run_in_its_order(tmp_path, monkeypatch, capsys):
    done = []

    def fake(name, out, *, console, seeds, quick, device, jobs):
        write_study(out, name, quick=quick)
        done.append((name, str(out), seeds))
        return Result(name, "A title", ["A protocol."])

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(studies, "run_study", fake)
    for command in re.findall(r"^trustgp .*?(?= *#|$)", DOCUMENT, flags=re.MULTILINE):
        assert main(shlex.split(command)[1:]) == 0
    assert {("toy", "results", 5), ("scale", "results", 9)} <= set(done)
    assert {name for name, out, _ in done if out == "results-quick"} == set(studies.STUDIES)
    assert (tmp_path / "results" / "report.html").exists()
    assert set(studies.STUDIES) <= set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, flags=re.MULTILINE))


# In a browser


@pytest.fixture
def visit(browser):
    """Opens a page; at the end it has neither complained nor requested anything but itself."""
    contexts, complaints, requests, visited = [], [], [], []

    def open_page(file: Path, *, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(message.text))
        opened.on("pageerror", lambda error: complaints.append(str(error)))
        opened.on("request", lambda request: requests.append(request.url))
        visited.append(file.as_uri())
        opened.goto(visited[-1])
        return opened

    open_page.blocked = []  # what a test has tried, and the policy refused
    yield open_page
    for context in contexts:
        context.close()
    if not open_page.blocked:
        assert complaints == []
        assert {url for url in requests if not url.startswith("data:")} == set(visited)


SHORT, LONG = "#transfer-table-1", "#transfer-table-2"


def column(opened, table: str, place: int) -> list[str]:
    """Text of a column as it is shown: hidden rows are left out, hidden cells are empty."""
    return opened.locator(f"{table} tbody tr:not(.group)").evaluate_all(
        """(rows, place) => rows.filter((row) => row.checkVisibility()).map((row) => row.cells[place])
          .map((cell) => cell.checkVisibility() ? cell.innerText.trim() : "")""",
        place,
    )


def click(opened, table: str, header: str) -> str:
    found = opened.locator(f"{table} thead th", has_text=header).first
    found.locator("button").click()
    return found.get_attribute("aria-sort")


def test_text_that_looks_like_html_stays_text(evil):
    elements = Elements(evil.read_text())
    assert len(elements.all("script")) == 1
    assert not any(name.startswith("on") for _, given in elements.found for name in given)
    assert {picture.get("src", "data:")[:5] for picture in elements.all("img")} == {"data:"}
    assert EVIL in [link["title"] for link in elements.all("a") if "title" in link]


def test_no_text_acts(visit, evil):
    opened = visit(evil)
    opened.locator("summary").first.click()
    opened.locator(".enlarge").click()
    opened.keyboard.press("Escape")
    opened.locator("thead button:visible").first.click()
    assert opened.evaluate("window.bad") is None
    assert opened.locator("h2").inner_text() == " ".join(EVIL.split())


def test_the_policy_keeps_even_its_own_scripts_from_the_network(visit, page):
    opened = visit(page)
    visit.blocked = opened.evaluate(
        """() => new Promise((done) => {
          addEventListener("securitypolicyviolation", (event) => done(event.blockedURI));
          new Image().src = "https://example.org/a.png";
        })"""
    )
    assert visit.blocked.startswith("https://example.org")
    # the browser may announce the request before it refuses it; an answer there is not
    assert opened.evaluate("fetch('https://example.org').then(() => 'sent', () => 'refused')") == "refused"


def test_a_header_sorts_up_down_and_back_by_click_and_by_key(visit, page):
    opened = visit(page)
    before = column(opened, SHORT, 1)

    def numbers():
        return [text.split(" ")[0] for text in column(opened, SHORT, 1)]

    assert click(opened, SHORT, "NLL") == "ascending"
    assert numbers() == ["-20.25", "-1.50", "3.00", "\N{EN DASH}"]
    assert click(opened, SHORT, "NLL") == "descending"
    assert numbers() == ["3.00", "-1.50", "-20.25", "\N{EN DASH}"]
    assert click(opened, SHORT, "NLL") == "none"
    assert column(opened, SHORT, 1) == before
    click(opened, SHORT, "neighbours")
    assert column(opened, SHORT, 0) == ["0.5 of them", "9 of them", "10 of them", "none"]
    opened.locator(f"{SHORT} thead button").last.focus()
    opened.keyboard.press("Enter")
    assert numbers()[0] == "-20.25"
    states = opened.locator(f"{SHORT} thead th").evaluate_all("all => all.map(h => h.ariaSort)")
    assert states == ["none", "ascending"]
    opened.keyboard.press("Space")
    assert numbers()[0] == "3.00"


def test_rows_are_sorted_within_groups_or_without_and_a_filter_keeps_rows_with_every_word(visit, page):
    opened = visit(page)
    click(opened, LONG, "coverage")
    assert column(opened, LONG, 0) == [""] * 60  # the name of the group is above, not in each row
    shown = [float(text) for text in column(opened, LONG, 3)]
    groups = [shown[start : start + 15] for start in range(0, 60, 15)]
    assert all(group == sorted(group) for group in groups)
    assert shown != sorted(shown)
    opened.locator(f"{LONG} .grouping").uncheck()
    assert [float(text) for text in column(opened, LONG, 3)] == sorted(shown)
    assert set(column(opened, LONG, 0)) == set(SPLITS)
    opened.locator(f"{LONG} .grouping").check()
    assert [float(text) for text in column(opened, LONG, 3)] == shown
    for _ in range(2):
        click(opened, LONG, "coverage")
    opened.locator(f"{LONG} .filter").fill("barrett TRUSTGP")
    wanted = [row[1] for row in long_table().rows if row[0] == "barrett" and row[1].startswith("trustgp")]
    assert column(opened, LONG, 1) == wanted
    assert opened.locator(f"{LONG} .group:visible").all_inner_texts() == ["barrett"]
    assert opened.locator(f"{LONG} output").inner_text() == f"{len(wanted)} of 60 rows"
    opened.locator(f"{LONG} .filter").fill("")
    assert len(column(opened, LONG, 1)) == 60
    assert opened.locator(f"{LONG} output").inner_text() == "60 rows"
