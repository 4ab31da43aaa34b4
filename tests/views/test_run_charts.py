"""What charts.js is told of a run."""

from views.run_charts import run_charts


def test_the_largest_tiles_that_some_game_has_reached_are_drawn_in_order() -> None:
    shares = {f"self_play/reached_{tile}": 0.5 for tile in (2048, 1024, 512, 256, 128, 64)}
    rows = [{"iteration": 1.0, **shares, "self_play/reached_4096": 0.0}, {"iteration": 2.0}]
    found = run_charts(rows)
    (tiles,) = [chart for chart in found["charts"] if chart["title"] == "Games that reach a tile"]
    assert [curve["name"] for curve in tiles["curves"]] == ["128", "256", "512", "1024", "2048"]
    assert tiles["unit"] == "share" and found["figures"]["self_play/reached_2048"] == [0.5, None]


def test_games_without_tiles_have_no_chart_of_them() -> None:
    titles = [chart["title"] for chart in run_charts([{"iteration": 1.0}])["charts"]]
    assert "Loss" in titles and "Games that reach a tile" not in titles
