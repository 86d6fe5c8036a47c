"""The toy study: facts of a small run on generated rows, and the real rows."""

from trustgp_experiments.core.toy import NUM_EXPERTS, toy_data


def test_patchwork_makes_jumps_smaller_and_the_band_is_wider_where_there_are_no_rows(small_run):
    result = small_run("toy")[1]
    for seed in result.numbers["seeds"]:
        jumps = {
            name: numbers["mean_jump"] for name, numbers in seed.items()
        }  # the largest is that of one row
        assert all(1 <= jumps[name] < jumps["independent"] for name in ("patchwork", "default"))
        for numbers in (seed[name] for name in ("independent", "patchwork")):
            assert min(numbers[f"{end}_std"] for end in ("gap", "left", "right")) > 2 * numbers["rows_std"]
        (count,) = {numbers["borders"] for numbers in seed.values()}  # all variants have the same division
        assert count >= NUM_EXPERTS - 1
        assert all(len(numbers["jumps"]) == count for numbers in seed.values())


def test_snelsons_rows_lose_those_in_the_gap(data_root, monkeypatch):
    monkeypatch.setenv("TRUSTGP_DATA", str(data_root))
    data = toy_data()
    assert data.source == "snelson"
    assert len(data.inputs) == len(data.targets) == 148
    low, high = data.gap
    assert not bool(((data.inputs > low) & (data.inputs < high)).any())
    assert "52 of them" in data.about
