"""The games in games are what they say: by the contract, by published counts, and by OpenSpiel's rules."""

from inspect import signature
from typing import Any

import numpy as np
import pytest

from keima.config.load import load_settings
from keima.config.own_modules import load_module
from keima.games.authoring.check import find_further_symmetries
from keima.games.authoring.contract import check_game
from keima.games.game import Game, States
from keima.games.perft import count_perft
from tests.own_game import EXAMPLES, example

OTHELLO_PERFT = [4, 12, 56, 244, 1_396, 8_200, 55_092]  # https://oeis.org/A124004
RANDOM_GAMES = 12


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("othello", {}),
        pytest.param("hex", {"size": 3, "swap": True}, marks=pytest.mark.slow),
        pytest.param("gomoku", {"size": 6}, marks=pytest.mark.slow),
        pytest.param("corner_four", {}, marks=pytest.mark.slow),
        pytest.param("einstein", {}, marks=pytest.mark.slow),
        ("pig", {"goal": 20, "max_plies": 200}),
        pytest.param("race", {}, marks=pytest.mark.slow),
        pytest.param("plain_2048", {}, marks=pytest.mark.slow),
        pytest.param("three_player_connect_four", {"rows": 4, "columns": 4, "winning": 3}, marks=pytest.mark.slow),
        pytest.param("othello", {"size": 6}, marks=pytest.mark.slow),
        pytest.param("three_player_connect_four", {}, marks=pytest.mark.slow),
        pytest.param("hex", {"size": 11}, marks=pytest.mark.slow),
        pytest.param("tic_tac_toe", {}, marks=pytest.mark.slow),
        pytest.param("amazons", {}, marks=pytest.mark.slow),
        pytest.param("dots_and_boxes", {"boxes": 3}, marks=pytest.mark.slow),
        pytest.param("kalah", {}, marks=pytest.mark.slow),
        pytest.param("lines_of_action", {}, marks=pytest.mark.slow),
    ],
)
def test_an_example_keeps_the_contract(name: str, options: dict[str, Any]) -> None:
    check_game(example(name, **options), games=4)


@pytest.mark.medium
@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_has_a_config_that_names_it(config: Any) -> None:
    settings = load_settings(config)
    build = load_module(settings.game.name).game
    assert settings.game.options.keys() <= signature(build).parameters.keys()


@pytest.mark.medium
def test_othello_has_as_many_lines_of_play_as_others_have_counted() -> None:
    assert [count_perft(example("othello"), depth) for depth in range(1, 8)] == OTHELLO_PERFT


@pytest.mark.medium
def test_othello_is_openspiels_which_has_a_move_for_passing() -> None:
    pyspiel = pytest.importorskip("pyspiel")
    game, theirs = example("othello"), pyspiel.load_game("othello")
    random = np.random.default_rng(1)
    passes = 0
    for _ in range(RANDOM_GAMES):
        state, other = game.initial_state(), theirs.new_initial_state()
        while not game.terminal(state):
            while other.legal_actions() == [game.num_actions]:
                other.apply_action(game.num_actions)
                passes += 1
            legal = game.legal_actions(state).tolist()
            assert (legal, game.current_player(state)) == (other.legal_actions(), other.current_player())
            move = int(random.choice(legal))
            game.play(state, move)
            other.apply_action(move)
        while not other.is_terminal() and other.legal_actions() == [game.num_actions]:
            other.apply_action(game.num_actions)
        assert other.is_terminal() and game.returns(state).tolist() == other.returns()
    assert passes > 0


@pytest.mark.medium
def test_the_swap_takes_over_the_first_stone_mirrored_once() -> None:
    game = example("hex", size=3, swap=True)
    state, swap = game.initial_state(), game.num_actions - 1
    assert swap not in game.legal_actions(state)
    game.play(state, game.parse_action("b1"))
    game.play(state, swap)
    assert game.current_player(state) == 0 and swap not in game.legal_actions(state)
    assert game.parse_action("a2") not in game.legal_actions(state) and game.parse_action("b1") in game.legal_actions(
        state
    )


@pytest.mark.slow
def test_a_stone_over_the_missing_corner_rests_a_row_higher_and_no_symmetry_is_proposed() -> None:
    game = example("corner_four")
    state = game.initial_state()
    for _ in range(5):
        assert 0 in game.legal_actions(state)
        game.play(state, 0)
    assert 0 not in game.legal_actions(state)
    assert find_further_symmetries(game) == []


EINSTEIN_START = """|b1||b2||b3||__||__|
|b4||b5||__||__||__|
|b6||__||__||__||w6|
|__||__||__||w5||w4|
|__||__||w3||w2||w1|
"""


@pytest.mark.medium
def test_einstein_is_openspiels_seen_from_the_other_side() -> None:
    """There the second corner begins, and chance orders the stones; the order of ours is one of these."""
    pyspiel = pytest.importorskip("pyspiel")
    game, theirs, random = example("einstein"), pyspiel.load_game("einstein_wurfelt_nicht"), np.random.default_rng(1)
    begun = theirs.new_initial_state()
    begun.apply_action(0)
    begun = next(
        state for order in begun.legal_actions() if str(state := begun.child(order)).startswith(EINSTEIN_START)
    )
    names = (("left", "up", "diag"), ("right", "down", "diag"))  # of the steps of either side
    for _ in range(RANDOM_GAMES):
        state, other = game.initial_state(), begun.clone()
        first = other.child(0).current_player()
        while not game.terminal(state):
            outcomes, _ = game.chance_outcomes(state)
            if len(outcomes):
                die = int(random.choice(outcomes))
                assert other.is_chance_node() and len(other.legal_actions()) == len(outcomes) == 6
                game.play(state, die)
                other.apply_action(die)
                continue
            player = game.current_player(state)
            assert other.current_player() == (first + player) % 2
            stones = cells_of(game, state)
            said = {
                f"{'WB'[player]}{abs(stones[move % 25])}-{names[player][move // 25]}": int(move)
                for move in game.legal_actions(state)
            }
            known = {other.action_to_string(action).rstrip("*"): action for action in other.legal_actions()}
            assert said.keys() == known.keys()
            name = str(random.choice(sorted(said)))
            game.play(state, said[name])
            other.apply_action(known[name])
        assert other.is_terminal() and other.returns()[first] == game.returns(state)[0]


def cells_of(game: Game, state: States) -> list[int]:
    """Return the stones of EinStein wuerfelt nicht, row by row, as its text shows them."""
    rows = [line.split()[1:] for line in game.render(state).splitlines()[:5]]
    return [0 if cell == "." else int(cell) for row in rows for cell in row]
