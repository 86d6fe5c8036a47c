"""A study's result in the terminal."""

import io

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


def test_the_best_is_looked_for_in_the_whole_table_where_there_are_no_blocks():
    assert best_cells(table(ROWS)) == {(1, 2)}


def test_the_best_is_looked_for_within_each_block():
    assert best_cells(table(ROWS, block="split")) == {(1, 2), (2, 2)}
    assert best_cells(table(ROWS, block="method")) == {(0, 2), (1, 2)}


def test_a_block_need_not_be_in_one_piece():
    mixed = [ROWS[0], ROWS[2], ROWS[1], ROWS[3]]
    assert best_cells(table(mixed, block="split")) == {(2, 2), (1, 2)}
    assert blocks_of(table(mixed, block="split")) == {"random": [0, 2], "blocks": [1, 3]}


def test_the_high_end_may_be_the_better_one():
    assert best_cells(table(ROWS, better="high")) == {(2, 2)}


def test_nothing_is_best_where_no_end_is_better_or_nothing_is_known():
    assert best_cells(table(ROWS, better=None)) == set()
    assert best_cells(table([["random", "ours", None], ["random", "theirs", "failed"]])) == set()
    assert best_cells(table([])) == set()


def test_numbers_that_are_printed_alike_are_equally_good():
    rows = [["a", "ours", -1.501], ["a", "theirs", -1.499], ["a", "third", -1.489]]
    assert best_cells(table(rows)) == {(0, 2), (1, 2)}
    assert best_cells(table(rows, digits=3)) == {(0, 2)}


def test_cells_read_as_people_write_them():
    expected = [
        ([-1.7411, 0.0123], Column("NLL"), "-1.741 ± 0.012"),
        (94.23, Column("coverage", 1, unit="%"), "94.2 %"),
        (12_000, Column("rows", 0), "12000"),
        (None, Column("NLL"), ""),
        ("ours", Column("method", -1), "ours"),
        (True, Column("holds", -1), "yes"),
    ]
    assert [text_of(cell, column) for cell, column, _ in expected] == [text for _, _, text in expected]


def test_a_cell_is_compared_by_its_first_number():
    cells = ([2.5, 1.0], 3, None, "a", True)
    assert [leading(cell) for cell in cells] == [2.5, 3.0, None, None, None]


def printed(result: Result) -> str:
    tape = io.StringIO()
    show(result, Console(width=100, file=tape))
    return tape.getvalue()


def test_all_that_is_shown_is_in_the_terminal_and_brackets_are_not_markup():
    columns = [Column("method [a]", -1), Column("NLL", 2, "low")]
    shown = Table("Title [b]", columns, [["ours [bold]", -1.0], ["[red]theirs[/red]", 2.0]], note="Note [c].")
    text = printed(Result("toy", "Is it so?", ["So."], [shown], findings=["Found [d]."]))
    for part in ("method [a]", "Title [b]", "ours [bold]", "[red]theirs[/red]", "Note [c].", "* Found [d]."):
        assert part in text


def test_the_best_is_bold_and_the_others_are_not():
    rich = as_rich(table(ROWS))
    styles = [str(cell.style) for cell in list(rich.columns)[2].cells]
    assert styles == ["", "bold", "", ""]
