"""Every game keeps the contract, and the check of it catches games that do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from keima.games import CHANCE, GAMES, Game, load_game
from keima.games.authoring.contract import ContractBroken, check_game, is_symmetry
from keima.games.game import (
    Actions,
    Floats,
    Planes,
    Returns,
    States,
    chance_outcomes_kernel,
    legal_actions_kernel,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)
from keima.games.twenty48.rules import DUE, LEGAL, ROWS
from tests.games.dice_race import dice_race
from tests.games.dots_and_boxes import dots_and_boxes

# Options with which a game is checked in addition to its defaults.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "go": [{"size": 5}, {"size": 7, "komi": 4.5}],
    "chess": [{"max_plies": 150, "claim_draws": False}],
    "twenty48": [
        {"height": 2, "width": 2},
        {"height": 2, "width": 5},
        {"height": 4, "width": 3},
    ],
}
OURS = [name for name in GAMES if name != "openspiel"]  # tests/games/openspiel checks OpenSpiel's
GAMES_PLAYED = {"twenty48": 2, "chess": 4, "go": 4}  # instead of the default: their games are long


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name in OURS for options in [{}, *OPTIONS.get(name, [])]]
)
def test_every_game_keeps_the_contract(name: str, options: dict[str, Any]) -> None:
    check_game(load_game(name, **options), games=GAMES_PLAYED.get(name, 24))


@pytest.mark.slow
def test_2048_keeps_the_contract_on_its_largest_board() -> None:
    check_game(load_game("twenty48", height=5, width=5), games=GAMES_PLAYED["twenty48"])


@pytest.mark.medium
@pytest.mark.parametrize("build", [dice_race, dots_and_boxes])
def test_games_of_tests_keep_the_contract(build: Callable[[], Game], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAMES, build.__name__, build.__module__)
    check_game(build())


@legal_actions_kernel
def descending_actions(state: States, out: Actions) -> int:
    count = 0
    for cell in range(8, -1, -1):
        if state[3] == 0 and (state[1] >> cell) & 1 == 0:
            out[count] = cell
            count += 1
    return count


@legal_actions_kernel
def actions_after_the_end(state: States, out: Actions) -> int:
    count = 0
    for cell in range(9):
        if (state[1] >> cell) & 1 == 0:
            out[count] = cell
            count += 1
    return count


@legal_actions_kernel
def uncounted_actions(state: States, out: Actions) -> int:
    out[0] = 4
    return 2


@legal_actions_kernel
def too_many_actions(state: States, out: Actions) -> int:
    for cell in range(10):
        out[cell] = cell
    return 9


@step_kernel
def step_into_the_next_row(state: States, action: int) -> None:
    state[0] |= 1 << action
    state[4] = 1


@step_kernel
def step_that_passes(state: States, action: int) -> None:
    pass


@query_kernel
def third_player(state: States) -> int:
    return state[2] % 3


@query_kernel
def never(state: States) -> int:
    return 0


@query_kernel
def always(state: States) -> int:
    return 1


@returns_kernel
def both_win(state: States, out: Returns) -> None:
    out[0] = out[1] = 1


@returns_kernel
def first_player_leads(state: States, out: Returns) -> None:
    out[0], out[1] = 1, -1


@returns_kernel
def one_player_returns(state: States, out: Returns) -> None:
    out[0] = 0


@observe_kernel
def half_written(state: States, planes: Planes) -> None:
    planes[0] = 0


@observe_kernel
def without_symmetry(state: States, planes: Planes) -> None:
    for cell in range(9):
        planes[0, cell // 3, cell % 3] = (state[1] >> cell) & 1
        planes[1, cell // 3, cell % 3] = cell


@observe_kernel
def observation_that_plays(state: States, planes: Planes) -> None:
    planes[:] = 0
    state[2] += 1


@query_kernel
def ply_hash(state: States) -> int:
    return state[2]


@query_kernel
def history_hash(state: States) -> int:
    return state[4]


@step_kernel
def step_with_history(state: States, action: int) -> None:
    mine = state[0] | (1 << action)
    state[1] |= 1 << action
    state[0] = state[1] ^ mine
    state[2] += 1
    state[4] = 31 * state[4] + action + 1
    for line in (0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124):
        if mine & line == line:
            state[3] = 1
    if state[2] == 9 and state[3] == 0:
        state[3] = 2


@chance_outcomes_kernel
def outcomes_everywhere(state: States, outcomes: Actions, probabilities: Floats) -> int:
    count = 0
    for outcome in range(8):
        if state[DUE] == 0 or (state[ROWS + outcome // 4] >> 8 * ((outcome >> 1) & 1)) & 0xFF == 0:
            outcomes[count] = outcome
            count += 1
    probabilities[:count] = 1.0 / count
    return count


@chance_outcomes_kernel
def descending_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    outcomes[0], outcomes[1] = 2, 0
    probabilities[0] = probabilities[1] = 0.5
    return 2


@chance_outcomes_kernel
def uncounted_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    outcomes[0], probabilities[0] = 0, 1
    return 2


@chance_outcomes_kernel
def outcomes_without_probabilities(state: States, outcomes: Actions, probabilities: Floats) -> int:
    outcomes[0] = 0
    return 1


@chance_outcomes_kernel
def too_many_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    for outcome in range(9):
        outcomes[outcome] = outcome
    probabilities[:] = 0.125
    return 8


@chance_outcomes_kernel
def too_many_probabilities(state: States, outcomes: Actions, probabilities: Floats) -> int:
    for outcome in range(8):
        outcomes[outcome], probabilities[outcome + 1] = outcome, 0.125
    probabilities[0] = 0.125
    return 8


@chance_outcomes_kernel
def unknown_outcome(state: States, outcomes: Actions, probabilities: Floats) -> int:
    outcomes[0], probabilities[0] = 8, 1
    return 1


@chance_outcomes_kernel
def impossible_outcome(state: States, outcomes: Actions, probabilities: Floats) -> int:
    outcomes[0], outcomes[1] = 0, 2
    probabilities[0], probabilities[1] = 1, 0
    return 2


@chance_outcomes_kernel
def half_of_the_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    outcomes[0], probabilities[0] = 0, 0.5
    return 1


@chance_outcomes_kernel
def growing_count(state: States, outcomes: Actions, probabilities: Floats) -> int:
    return 9


@chance_outcomes_kernel
def chance_prefers_a_corner(state: States, outcomes: Actions, probabilities: Floats) -> int:
    if state[DUE] == 0:
        return 0
    count = 0
    for outcome in range(8):
        if (state[ROWS + outcome // 4] >> 8 * ((outcome >> 1) & 1)) & 0xFF == 0:
            outcomes[count] = outcome
            probabilities[count] = 1.0
            count += 1
    probabilities[0] = 2.0
    probabilities[:count] /= count + 1
    return count


@legal_actions_kernel
def actions_at_chance_states(state: States, out: Actions) -> int:
    count = 0
    for action in range(4):
        if state[DUE] > 0 or (state[LEGAL] >> action) & 1:
            out[count] = action
            count += 1
    return count


@query_kernel
def player_at_chance_states(state: States) -> int:
    return 0


@query_kernel
def chance_for_ever(state: States) -> int:
    return CHANCE


@step_kernel
def outcomes_lost(state: States, action: int) -> None:
    pass


@query_kernel
def board_hash(state: States) -> int:
    return state[ROWS] | state[ROWS + 1] << 16


def tic_tac_toe(**changes: Any) -> Game:
    return replace(load_game("tic_tac_toe"), **changes)


def with_kernels(**kernels: Any) -> Game:
    return tic_tac_toe(rules=load_game("tic_tac_toe").rules._replace(**kernels))


def small_2048(**changes: Any) -> Game:
    return replace(load_game("twenty48", height=2, width=2), **changes)


def with_chance(**kernels: Any) -> Game:
    return small_2048(rules=small_2048().rules._replace(**kernels))


IDENTITY = np.arange(9, dtype=np.int32)

BROKEN = [
    (lambda: tic_tac_toe(max_plies=5), "goes on beyond max_plies"),
    (lambda: tic_tac_toe(start=np.array([0, 0, 0, 1])), "over before it starts"),
    (lambda: tic_tac_toe(start=np.zeros(4, np.int32)), "not a row of int64"),
    (lambda: tic_tac_toe(num_players=17), "num_players is 17; give the number of players, from 1 to 16"),
    (lambda: tic_tac_toe(policy_planes=2), "policy_planes"),
    (lambda: tic_tac_toe(piece_planes=2), "piece_planes"),
    (lambda: tic_tac_toe(rules_version=0), "rules_version"),
    (lambda: tic_tac_toe(rules_version=2), "load_game with these options gives another rules_version"),
    (lambda: tic_tac_toe(options={"size": 3}), "does not build it again: game 'tic_tac_toe'"),
    (lambda: tic_tac_toe(name="noughts"), "does not build it again: there is no game called 'noughts'"),
    (lambda: tic_tac_toe(options={"size": (3, 3)}), "trip through JSON"),
    (lambda: tic_tac_toe(action_symmetries=np.tile(IDENTITY, (8, 1))), "does not show the symmetric board"),
    (lambda: tic_tac_toe(point_symmetries=np.zeros((8, 9), np.int32)), "not a permutation"),
    (lambda: tic_tac_toe(point_symmetries=IDENTITY[None, ::-1], action_symmetries=IDENTITY[None]), "not the identity"),
    (lambda: tic_tac_toe(point_symmetries=IDENTITY[None]), "as many point symmetries"),
    (
        lambda: tic_tac_toe(point_symmetries=np.argsort(tic_tac_toe().point_symmetries, axis=1).astype(np.int32)),
        "says where a point goes, and must say where it comes from; give np.argsort",
    ),
    (
        lambda: tic_tac_toe(
            point_symmetries=np.stack([IDENTITY, np.roll(IDENTITY, 1)]), action_symmetries=np.stack([IDENTITY] * 2)
        ),
        "two symm",
    ),
    (lambda: tic_tac_toe(symmetric_starts=np.zeros((7, 4), np.int64)), "symmetric_starts has shape"),
    (lambda: tic_tac_toe(symmetric_starts=np.ones((8, 4), np.int64)), "the first of symmetric_starts is not start"),
    (lambda: tic_tac_toe(action_name=lambda action: "5"), "read as another action"),
    (lambda: tic_tac_toe(parse_action=lambda text: int(text) - 1 if text.isdigit() else 0), "takes nonsense"),
    (lambda: tic_tac_toe(render=lambda state: ""), "render gives no text"),
    (lambda: with_kernels(legal_actions=descending_actions), "not in ascending order"),
    (lambda: with_kernels(legal_actions=actions_after_the_end), "exactly until the game is over"),
    (lambda: with_kernels(legal_actions=uncounted_actions), "counts more actions than it writes"),
    (lambda: with_kernels(legal_actions=too_many_actions), "writes behind its array"),
    (lambda: with_kernels(step=step_into_the_next_row), "touches another game's state"),
    (lambda: with_kernels(step=step_that_passes), "leaves the state as it was"),
    (lambda: with_kernels(current_player=third_player), "which is not a player"),
    (lambda: with_kernels(terminal=never), "exactly until the game is over"),
    (lambda: with_kernels(terminal=always), "over before it starts"),
    (lambda: with_kernels(returns=both_win), "do not add up to zero"),
    (lambda: with_kernels(returns=first_player_leads), "before the game is over"),
    (lambda: with_kernels(returns=one_player_returns), "every player's"),
    (lambda: with_kernels(observe=half_written), "every element"),
    (lambda: with_kernels(observe=without_symmetry), "does not show the symmetric board"),
    (lambda: with_kernels(observe=observation_that_plays), "a query changes the state"),
    (lambda: with_kernels(hash=ply_hash), "two positions that look different have the same hash"),
    (
        lambda: replace(with_kernels(hash=history_hash, step=step_with_history), start=np.zeros(5, np.int64)),
        "two positions that look the same have different hashes",
    ),
    (lambda: tic_tac_toe(most_legal_actions=10), "most_legal_actions is not from 1 to num_actions"),
    (lambda: tic_tac_toe(most_legal_actions=8), "legal_actions says that there are 9"),
    (lambda: small_2048(num_outcomes=2**17), "num_outcomes is 131072 and does not fit 16 bits"),
    (lambda: small_2048(num_outcomes=6), "outcome_symmetries does not have 6 columns"),
    (lambda: small_2048(outcome_symmetries=np.arange(8, dtype=np.int32)[None]), "as many outcome symmetries"),
    (
        lambda: small_2048(outcome_symmetries=np.zeros((8, 8), np.int32)),
        "outcome_symmetries has a row that is not a permutation",
    ),
    (lambda: small_2048(outcome_symmetries=np.tile(np.arange(8), (8, 1))), "not int32"),
    (
        lambda: small_2048(outcome_symmetries=np.tile(np.arange(8, dtype=np.int32), (8, 1))),
        "does not show the symmetric board",
    ),
    (lambda: small_2048(outcome_name=lambda outcome: "2"), "two outcomes have the same name"),
    (lambda: small_2048(outcome_name=lambda outcome: ""), "or one has none"),
    (lambda: small_2048(num_outcomes=0), "chance_outcomes says that there are 8"),
    (lambda: with_kernels(current_player=chance_for_ever), "which is not a player"),
    (lambda: with_kernels(chance_outcomes=growing_count), "chance_outcomes says that there are 9"),
    (lambda: with_chance(chance_outcomes=outcomes_everywhere), "chance outcomes exactly where chance is to move"),
    (
        lambda: with_chance(chance_outcomes=load_game("go").rules.chance_outcomes),
        "chance outcomes exactly where chance is to move",
    ),
    (lambda: with_chance(chance_outcomes=descending_outcomes), "outcomes are not in ascending order"),
    (lambda: with_chance(chance_outcomes=uncounted_outcomes), "counts more outcomes than it writes"),
    (lambda: with_chance(chance_outcomes=outcomes_without_probabilities), "counts more outcomes than it writes"),
    (lambda: with_chance(chance_outcomes=too_many_outcomes), "writes behind its outcomes"),
    (lambda: with_chance(chance_outcomes=too_many_probabilities), "writes behind its probabilities"),
    (lambda: with_chance(chance_outcomes=unknown_outcome), "an outcome is out of range"),
    (lambda: with_chance(chance_outcomes=impossible_outcome), "no positive probability"),
    (lambda: with_chance(chance_outcomes=half_of_the_outcomes), r"add up to 0\.5"),
    (lambda: with_chance(chance_outcomes=chance_prefers_a_corner), "outcomes to such as are equally likely"),
    (lambda: with_chance(legal_actions=actions_at_chance_states), "legal actions where chance is to move"),
    (lambda: with_chance(current_player=player_at_chance_states), "exactly until the game is over"),
    (lambda: with_chance(step=outcomes_lost), "outcome .* leaves the state as it was"),
    (lambda: with_chance(terminal=always), "over before it starts"),
    (lambda: with_chance(terminal=never), "exactly until the game is over"),
    (lambda: with_chance(hash=board_hash), "two positions that look different have the same hash"),
]


@pytest.mark.medium
@pytest.mark.parametrize(("build", "complaint"), BROKEN, ids=[complaint for _, complaint in BROKEN])
def test_a_broken_game_is_caught(build: Any, complaint: str) -> None:
    with pytest.raises(ContractBroken, match=complaint):
        check_game(build())


def test_the_complaint_names_the_game_the_moves_that_lead_there_and_what_to_do() -> None:
    told = (
        r"^tic_tac_toe: the game goes on beyond max_plies = 2 after the moves [1-9] [1-9]; "
        r"let step end it by then, or raise max_plies$"
    )
    with pytest.raises(ContractBroken, match=told):
        check_game(tic_tac_toe(max_plies=2))


def test_a_complaint_names_the_options_of_the_game() -> None:
    with pytest.raises(ContractBroken, match=r"^twenty48 \{'height': 2, .*\}: max_plies is not positive; give"):
        check_game(small_2048(max_plies=0))


@pytest.mark.medium
def test_a_symmetry_that_holds_is_told_from_one_that_does_not() -> None:
    game = tic_tac_toe()
    for y in range(8):
        assert is_symmetry(game, game.point_symmetries[y], game.action_symmetries[y], game.start)
    shifted = np.roll(IDENTITY, 3)
    assert not is_symmetry(game, shifted, np.argsort(shifted).astype(np.int32), game.start)
