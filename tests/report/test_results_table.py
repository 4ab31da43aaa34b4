"""The table and the picture of ratings."""

import math

import numpy as np
import pytest

from keima.evaluation.elo import Rating
from keima.play.arena.match_benchmark import Match
from keima.report.charts.png import COLOURS
from keima.report.charts.rating_picture import RatedPlayer, draw_ratings
from keima.report.terminal.results_table import make_player_results, make_results_table, rated_players
from tests.report.pictures import count_of, pixels


def match(first: str, second: str, scores: list[float], milliseconds: float) -> Match:
    return Match(
        first=first,
        second=second,
        players=2,
        seed=1,
        opening_plies=4,
        scores=np.array(scores),
        games=((1,) * 36,) * len(scores),
        move_seconds=(0.002, milliseconds / 1000),
        seconds=1.0,
    )


MATCHES = [
    match("network", "random", [1.0, 1.0, 0.5, 1.0], 0.1),
    match("network", "greedy", [0.0, 0.5, 0.0, 0.0], 0.4),
    match("random", "greedy", [0.0, 0.0, 0.0, 0.0], 0.4),
]
RATINGS = {
    "network": Rating(elo=200, margin=90),
    "random": Rating(elo=0, margin=0),
    "greedy": Rating(elo=450, margin=120),
}


def test_the_table_has_all_players_the_strongest_first_from_the_network_s_view() -> None:
    rows = make_player_results("network", MATCHES, RATINGS)
    lines = [" ".join(str(line).split()) for line in make_results_table(rows, anchor="random", width=120)]
    assert lines == [
        "Player Elo Wins Draws Losses Score Plies ms/move",
        f"greedy 450 ± 120 0 1 3 {lines[1].split(' 3 ')[1]}",
        "network 200 ± 90 2.00",
        f"random 0 3 1 0 {lines[3].split(' 1 0 ')[1]}",
    ]
    assert "12.5 % (" in lines[1] and lines[1].endswith("40 0.40")
    assert "87.5 % (" in lines[3] and lines[3].endswith("40 0.10")


@pytest.mark.medium
def test_the_picture_has_a_line_for_every_player_with_a_known_rating() -> None:
    players = rated_players(make_player_results("network", MATCHES, RATINGS), "random")
    assert [player.marked for player in players] == [False, True, False]
    more = [*players, RatedPlayer(name="$depth-1", elo=900, margin=10)]
    image, taller = (pixels(draw_ratings("chess", shown, anchor="random")) for shown in (players, more))
    assert image.shape[1] == taller.shape[1] and image.shape[0] < taller.shape[0]
    marks = [count_of(COLOURS[number], image) for number in (1, 0)]
    assert 0 < marks[0] < marks[1], "the network is marked, all others are not"


def test_a_picture_without_players_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_ratings("chess", [RatedPlayer(name="lost", elo=0, margin=math.inf)], anchor="random")
