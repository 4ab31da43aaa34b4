"""A race with dice for two: a game of chance for tests.

In turn a player chooses a die: the safe one, which shows 1 or 2, or the bold one, which shows 0 or 3; then moves on by
what it shows. Who first has gone ``GOAL`` steps wins; after ``MAX_PLIES`` plies the race is drawn. Before the first
turn the second player rolls the safe die.
"""

import numpy as np

from keima.games.game import (
    CHANCE,
    Actions,
    Floats,
    Game,
    Planes,
    Returns,
    Rules,
    States,
    chance_outcomes_kernel,
    final_score_kernel,
    legal_actions_kernel,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)

SAFE, BOLD = 0, 1  # actions
GOAL, MAX_PLIES = 6, 31
PLACE, MOVER, DIE, PLY, WORDS = 0, 2, 3, 4, 5  # words: both players' steps, the player to move, the die + 1, the plies


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    if state[DIE] != 0 or max(state[PLACE], state[PLACE + 1]) >= GOAL or state[PLY] == MAX_PLIES:
        return 0
    out[0], out[1] = SAFE, BOLD
    return 2


@chance_outcomes_kernel
def chance_outcomes(state: States, outcomes: Actions, probabilities: Floats) -> int:
    if state[DIE] == 0 or max(state[PLACE], state[PLACE + 1]) >= GOAL or state[PLY] == MAX_PLIES:
        return 0
    outcomes[0] = 1 if state[DIE] == SAFE + 1 else 0
    outcomes[1] = 2 if state[DIE] == SAFE + 1 else 3
    probabilities[0] = probabilities[1] = 0.5
    return 2


@step_kernel
def step(state: States, action: int) -> None:
    state[PLY] += 1
    if state[DIE] == 0:
        state[DIE] = action + 1
    else:
        state[PLACE + state[MOVER]] += action
        state[DIE], state[MOVER] = 0, 1 - state[MOVER]


@query_kernel
def current_player(state: States) -> int:
    return CHANCE if state[DIE] != 0 else state[MOVER]


@query_kernel
def terminal(state: States) -> int:
    return int(max(state[PLACE], state[PLACE + 1]) >= GOAL or state[PLY] == MAX_PLIES)


@returns_kernel
def returns(state: States, out: Returns) -> None:
    won = np.float32(state[PLACE] >= GOAL) - np.float32(state[PLACE + 1] >= GOAL)
    out[0], out[1] = won, -won


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    planes[0] = state[PLACE + state[MOVER]]
    planes[1] = state[PLACE + 1 - state[MOVER]]
    planes[2] = state[DIE]
    planes[3] = state[PLY]


@query_kernel
def position_hash(state: States) -> int:
    mine, theirs = state[PLACE + state[MOVER]], state[PLACE + 1 - state[MOVER]]
    return mine | theirs << 8 | state[DIE] << 16 | state[PLY] << 24


@final_score_kernel
def final_score(state: States, ownership: Actions) -> int:
    ownership[0] = 0
    return 2 * (state[PLACE] - state[PLACE + 1])


def parse_action(text: str) -> int:
    """Parse the number of a die."""
    if text not in ("0", "1"):
        raise ValueError(f"{text!r} is no die")
    return int(text)


def dice_race() -> Game:
    """The race from its start, where the second player's first roll is due."""
    start = np.zeros(WORDS, np.int64)
    start[MOVER], start[DIE] = 1, SAFE + 1
    identity = np.arange(4, dtype=np.int32)[None]
    return Game(
        name="dice_race",
        options={},
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, chance_outcomes),
        start=start,
        num_players=2,
        num_actions=2,
        observation_shape=(4, 1, 1),
        policy_planes=0,
        max_plies=MAX_PLIES,
        point_symmetries=identity[:, :1],
        action_symmetries=identity[:, :2],
        action_name=str,
        parse_action=parse_action,
        render=lambda state: f"{state[PLACE]} to {state[PLACE + 1]}",
        num_outcomes=4,
        outcome_symmetries=identity,
        final_score=final_score,
    )
