"""The charts of a run and their metrics."""

import re

from keima.report.charts.png import COLOURS
from keima.report.charts.run_charts import Curve, DrawnChart, RunCharts, make_run_charts, merge_charts
from keima.report.charts.viewer import CHARTS


def test_the_largest_tiles_that_some_game_has_reached_are_drawn_in_order() -> None:
    shares = {f"self_play/reached_{tile}": 0.5 for tile in (2048, 1024, 512, 256, 128, 64)}
    found = make_run_charts("run", [{"iteration": 1.0, **shares, "self_play/reached_4096": 0.0}, {"iteration": 2.0}])
    (tiles,) = [chart for chart in found.charts if chart.title == "Games that reach a tile"]
    assert [curve.name for curve in tiles.curves] == ["128", "256", "512", "1024", "2048"]
    assert tiles.unit == "share" and found.metrics["self_play/reached_2048"] == [0.5, None]


def test_games_without_tiles_have_no_chart_of_them() -> None:
    titles = [chart.title for chart in make_run_charts("run", [{"iteration": 1.0}]).charts]
    assert "Loss" in titles and "Games that reach a tile" not in titles


def test_a_chart_of_several_runs_has_the_curves_of_all() -> None:
    def reaching(*tiles: str) -> RunCharts:
        curves = [Curve(name=tile, metric=tile) for tile in tiles]
        return RunCharts(name="run", charts=[DrawnChart(section="", title="Tiles", curves=curves)], metrics={})

    (chart,) = merge_charts([reaching("1", "2"), reaching("2", "3")])
    assert [curve.name for curve in chart.curves] == ["1", "2", "3"]


def test_pictures_have_the_colours_of_pages() -> None:
    light = CHARTS["css"].read_text(encoding="utf-8").splitlines()[0]
    assert tuple(re.findall(r"--c\d: (#\w{6})", light)) == COLOURS
