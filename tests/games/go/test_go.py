"""Go follows its rules: known positions, and a naive implementation alongside in random games on boards of many
different sizes.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.games import Game, IllegalAction, load_game
from keima.games.authoring.contract import check_game
from keima.games.game import States
from keima.games.go.rules import score_lead

# Three stones of Black surround C3 and three of White D3; White is on C3, and Black can capture it from D3.
KO = "B3 E3 C4 D4 C2 D2 pass C3"
# White can add A1 to B1; Black then captures both from C1, and White one from B1: the position before A1.
SENDING_TWO = "A2 C2 B2 D1 pass B1 pass"
# Black has filled column B, White column D.
WALLS = "B1 D1 B2 D2 B3 D3 B4 D4 B5 D5"


def go(**options: Any) -> Game:
    return load_game("go", **{"size": 5, "komi": 0, **options})


def after(game: Game, moves: str) -> States:
    """Return the position after moves such as ``C3 pass D4``, Black's first; all of them must be legal."""
    state = game.initial_state()
    for move in moves.split():
        game.play(state, game.parse_action(move))
    return state


def stones(game: Game, state: States) -> list[str]:
    """Return the rows of the board from the top, as render shows them without coordinates and marks."""
    lines = game.render(state).replace("(", " ").replace(")", " ").splitlines()
    return ["".join(line.split()[1:-1]) for line in lines[1 : game.observation_shape[1] + 1]]


def legal(game: Game, moves: str, move: str) -> bool:
    return game.parse_action(move) in game.legal_actions(after(game, moves))


def test_a_stone_without_liberties_is_captured() -> None:
    game = go()
    assert stones(game, after(game, "B1 A1 A2")) == [".....", ".....", ".....", "X....", ".X..."]


def test_one_play_captures_all_chains_whose_last_liberty_it_takes() -> None:
    game = go()
    before = "A2 A1 B2 B1 D2 D1 E2 E1"
    assert stones(game, after(game, before))[3:] == ["XX.XX", "OO.OO"]
    assert stones(game, after(game, f"{before} C1"))[3:] == ["XX.XX", "..X.."]


def test_a_stone_captured_in_a_ko_may_be_recaptured_only_after_other_plays() -> None:
    game = go()
    assert stones(game, after(game, f"{KO} D3")) == [".....", "..XO.", ".X.XO", "..XO.", "....."]
    assert not legal(game, f"{KO} D3", "C3")
    assert legal(game, f"{KO} D3 A1 A5", "C3")
    with pytest.raises(IllegalAction):
        after(game, f"{KO} D3 C3")


def test_superko_forbids_the_last_play_around_three_kos() -> None:
    game = go(size=9)
    kos = [f"B{row} E{row} C{row + 1} D{row + 1} C{row - 1} D{row - 1}" for row in (2, 5, 8)]
    around = " ".join(
        [*kos, "D8 C2 pass C5", "D2 C8 D5 C2 D8"]
    )  # each of the last five captures a stone; C5 would capture the one on D5
    assert not legal(game, around, "C5")
    assert legal(game, f"{around} J9 J1", "C5")


def test_superko_forbids_recapturing_one_stone_after_sending_two() -> None:
    game = go()
    assert stones(game, after(game, f"{SENDING_TWO} A1 C1"))[3:] == ["XXO..", "..XO."]
    assert not legal(game, f"{SENDING_TWO} A1 C1", "B1")
    assert legal(game, f"{SENDING_TWO} A1 C1 E5 E4", "B1")


def test_superko_forbids_a_play_that_captures_nothing_and_yet_repeats_a_position() -> None:
    game = go()
    # White's two stones were captured, and B1 had never been there without A1.
    cycle = "A2 C2 B2 D1 pass A1 pass B1 C1 B1 pass"
    assert stones(game, after(game, cycle))[3:] == ["XXO..", ".O.O."]
    assert not legal(game, cycle, "A1")


def test_superko_forbids_only_repetitions() -> None:
    game = go()
    assert legal(
        game, "A2 C2 B2 D1 pass A1 pass B1 C1", "B1"
    )  # captures one stone, as in the test above, but into a new position


def test_a_pass_repeats_the_position_and_is_legal() -> None:
    assert legal(go(), f"{KO} D3 pass", "pass")


def test_suicide_is_illegal_by_default() -> None:
    assert not legal(go(), "A2 A1 B2 pass C1", "B1")
    assert not legal(go(), "A2 pass B1", "A1")


def test_suicide_of_several_stones_is_legal_if_enabled() -> None:
    game = go(suicide=True)
    assert stones(game, after(game, "A2 A1 B2 pass C1 B1"))[3:] == ["XX...", "..X.."]


def test_suicide_may_not_repeat_a_position_either() -> None:
    game = go(suicide=True)
    assert not legal(game, "A2 pass B1", "A1")
    assert not legal(game, "A2 pass B2 pass C1 A1 pass", "B1")


def test_not_even_the_empty_board_may_be_repeated() -> None:
    game = go(suicide=True)
    all_but_the_last = [f"pass {game.action_name(action)}" for action in range(24)]
    assert not legal(game, " ".join([*all_but_the_last, "pass"]), "E1")


def test_a_snapback_recaptures_the_capturing_chain() -> None:
    game = go()
    before = "A1 B2 A2 C2 B3 D2 C3 D1 D3 pass E2 pass E1 pass C1 B1"
    assert stones(game, after(game, before))[2:] == [".XXX.", "XOOOX", "XO.OX"]
    assert stones(game, after(game, f"{before} C1"))[2:] == [".XXX.", "X...X", "X.X.X"]


def test_area_is_stones_and_the_empty_points_that_reach_only_one_color() -> None:
    assert score_lead(after(go(), "")) == 0
    assert score_lead(after(go(), "C3")) == 25
    assert score_lead(after(go(), WALLS)) == 0  # and column C is neutral, like the shared liberties of a seki
    assert score_lead(after(go(komi=6.5), f"{WALLS} C3")) == 11 - 10 - 6.5


def test_dead_stones_count_as_long_as_they_are_on_the_board() -> None:
    assert score_lead(after(go(), f"{WALLS} pass A3")) == 5 - 11


def test_two_passes_in_a_row_end_the_game() -> None:
    game = go(komi=0.5)
    assert not game.terminal(after(game, "C3 pass D3 pass"))
    over = after(game, "C3 pass pass")
    assert game.terminal(over)
    assert len(game.legal_actions(over)) == 0
    assert game.returns(over).tolist() == [1, -1]


def test_a_game_of_max_plies_is_over_and_scored() -> None:
    game = go(komi=24.5, max_plies=3)
    assert game.returns(after(game, "C3 pass")).tolist() == [0, 0]
    over = after(game, "C3 pass D3")
    assert game.terminal(over)
    assert game.returns(over).tolist() == [1, -1]


def test_komi_decides_and_a_whole_komi_allows_draws() -> None:
    for komi, won in ((-0.5, 1), (0, 0), (0.5, -1)):
        game = go(komi=komi)
        assert game.returns(after(game, f"{WALLS} pass pass")).tolist() == [won, -won]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4}, "size must be from 5 to 19, not 4"),
        ({"size": 20}, "size must be from 5 to 19, not 20"),
        ({"size": "9"}, "size must be a whole number, not '9'"),
        ({"size": True}, "size must be a whole number, not True"),
        ({"komi": 7.25}, "komi must be a multiple of 0.5 from -25 to 25, not 7.25"),
        ({"komi": 25.5}, "komi must be a multiple of 0.5"),
        ({"komi": float("nan")}, "komi must be a multiple of 0.5"),
        ({"komi": float("inf")}, "komi must be a multiple of 0.5"),
        ({"komi": "7"}, "komi must be a number, not '7'"),
        ({"suicide": 1}, "suicide must be true or false, not 1"),
        ({"max_plies": 0}, "max_plies must be from 1 to 250, not 0"),
        ({"max_plies": 10**12}, "max_plies must be from 1 to 250"),
        ({"max_plies": 50.0}, "max_plies must be a whole number, not 50.0"),
        ({"handicap": 2}, "no option 'handicap'; it takes "),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        go(**options)


def test_points_are_named_with_a1_at_the_bottom_left() -> None:
    game = load_game("go", size=19)
    assert [game.action_name(action) for action in (0, 7, 8, 18, 342, 360, 361)] == [
        "A19",
        "H19",
        "J19",
        "T19",
        "A1",
        "T1",
        "pass",
    ]
    assert [game.parse_action(text) for text in ("a19", " T1 ", "Pass")] == [0, 360, 361]


@pytest.mark.parametrize("text", ["", "I3", "K3", "A0", "A10", "A", "5", "3C", "A-1", "A²", "C3 C4", "passs", "Ａ1"])
def test_an_invalid_point_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a point: type a letter from A to J .* such as C3, or pass"):
        load_game("go", size=9).parse_action(text)


def test_render_shows_coordinates_and_the_last_action() -> None:
    game = go()
    lines = [
        "   A B C D E",
        " 5 . . . . . 5",
        " 4 . . . . . 4",
        " 3 . . X . . 3",
        " 2 . . . . . 2",
        " 1 . . . .(O)1",
        "   A B C D E",
    ]
    assert game.render(after(game, "C3 E1")).splitlines() == lines
    assert game.render(after(game, "C3 E1 pass")).splitlines()[-1] == "Black passed"
    assert "10 . . . ." in load_game("go", size=10).render(load_game("go", size=10).initial_state())


def seen(game: Game, moves: str) -> NDArray[np.float32]:
    return game.observe(after(game, moves))


def marked(game: Game, plane: NDArray[np.float32]) -> list[str]:
    return [game.action_name(int(point)) for point in np.flatnonzero(plane)]


def test_the_planes_are_as_documented() -> None:
    game = go(komi=7)
    planes = seen(game, f"{KO} D3")
    assert marked(game, planes[0]) == ["D4", "E3", "D2"]  # White is to move
    assert marked(game, planes[1]) == ["C4", "B3", "D3", "C2"]
    assert marked(game, planes[2]) == ["D3"]
    assert marked(game, planes[3]) == ["D4", "E3", "D2"]
    assert marked(game, planes[4]) == ["C4", "C2"]
    assert marked(game, planes[5]) == ["C3"]
    assert [marked(game, plane) for plane in planes[6:11]] == [["D3"], ["C3"], [], ["D2"], ["C2"]]
    assert not planes[11].any()
    assert (planes[12] == np.float32(7 / 20)).all()
    assert (planes[13] == 1).all()
    assert (seen(game, "pass")[11] == 1).all()
    assert (seen(game, "C3 C4")[12] == np.float32(-7 / 20)).all()


def test_only_plays_that_are_legal_except_for_superko_are_marked_as_forbidden_by_it() -> None:
    assert marked(go(suicide=True), seen(go(suicide=True), "A2 pass B2 pass C1 A1 pass")[5]) == ["B1"]
    assert marked(go(suicide=False), seen(go(suicide=False), "A2 pass B2 pass C1 A1 pass")[5]) == []


def test_plays_in_an_order_that_the_network_does_not_see_have_the_same_hash() -> None:
    game = go(size=9)
    recent = "A1 B1 C1 D1 E1"
    assert game.hash(after(game, f"A9 B9 C9 D9 {recent}")) == game.hash(after(game, f"C9 D9 A9 B9 {recent}"))
    assert game.hash(after(game, f"A9 B9 C9 D9 {recent}")) != game.hash(after(game, "A9 B9 C9 D9 C1 B1 A1 D1 E1"))


@pytest.mark.medium
@pytest.mark.parametrize(
    "options", [{"suicide": True, "komi": 3.5}, pytest.param({"size": 6, "max_plies": 300}, marks=pytest.mark.slow)]
)
def test_other_options_also_keep_the_contract(options: dict[str, Any]) -> None:
    check_game(go(**{"komi": 7, **options}), games=8)


def test_a_9x9_position_is_copied_quickly() -> None:
    assert load_game("go").start.nbytes <= 4096
