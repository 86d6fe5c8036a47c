"""A study's result in the terminal."""

import io

import pytest
from rich.console import Console

from trustgp_experiments.core.result import Column, Result, Table
from trustgp_experiments.report.terminal import as_rich, best_cells, blocks_of, leading, show, text_of


def table(rows, *, block=None, better="low", digits=2) -> Table:
    columns = [Column("split", -1), Column("method", -1), Column("NLL", digits, better)]
    return Table("NLL", columns, rows, block=block)


ROWS = [
    ["random", "ours", [-1.5, 0.1]],
    ["random", "theirs", -2.0],
    ["blocks", "ours", -0.7],
    ["blocks", "theirs", None],
]
MIXED = [ROWS[0], ROWS[2], ROWS[1], ROWS[3]]  # blocks need not be contiguous
ALIKE = [["a", "ours", -1.501], ["a", "theirs", -1.499], ["a", "third", -1.489]]  # equal in two digits


@pytest.mark.parametrize(
    ("rows", "options", "best"),
    [
        (ROWS, {}, {(1, 2)}),
        (ROWS, {"block": "split"}, {(1, 2), (2, 2)}),
        (ROWS, {"block": "method"}, {(0, 2), (1, 2)}),
        (MIXED, {"block": "split"}, {(2, 2), (1, 2)}),
        (ROWS, {"better": "high"}, {(2, 2)}),
        (ROWS, {"better": None}, set()),
        ([["random", "ours", None], ["random", "theirs", "failed"]], {}, set()),
        ([], {}, set()),
        (ALIKE, {}, {(0, 2), (1, 2)}),
        (ALIKE, {"digits": 3}, {(0, 2)}),
    ],
)
def test_the_best_numbers_of_a_table_or_of_each_block(rows, options, best):
    assert best_cells(table(rows, **options)) == best


def test_cells_as_text_and_as_numbers():
    assert blocks_of(table(MIXED, block="split")) == {"random": [0, 2], "blocks": [1, 3]}
    assert text_of([-1.7411, 0.0123], Column("NLL")) == "-1.741 ± 0.012"
    assert text_of(94.23, Column("coverage", 1, unit="%")) == "94.2 %"
    assert text_of(12_000, Column("rows", 0)) == "12000"
    assert [text_of(cell, Column("", -1)) for cell in (None, "ours", True)] == ["", "ours", "yes"]
    assert [leading(cell) for cell in ([2.5, 1.0], 3, None, "a", True)] == [2.5, 3.0, None, None, None]


def test_a_result_is_printed_without_markup_and_the_best_is_bold():
    columns = [Column("method [a]", -1), Column("NLL", 2, "low")]
    shown = Table("Title [b]", columns, [["ours [bold]", -1.0], ["[red]theirs[/red]", 2.0]], note="Note [c].")
    show(Result("toy", "Is it so?", ["So."], [shown], findings=["Found [d]."]), console := recorder())
    for part in ("method [a]", "Title [b]", "ours [bold]", "[red]theirs[/red]", "Note [c].", "* Found [d]."):
        assert part in console.file.getvalue()
    cells = list(as_rich(table(ROWS)).columns)[2].cells
    assert [str(cell.style) for cell in cells] == ["", "bold", "", ""]


def recorder() -> Console:
    return Console(width=100, file=io.StringIO())
