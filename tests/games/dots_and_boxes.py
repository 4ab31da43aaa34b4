"""Three dots-and-boxes boxes in a row: a game for tests, in which who completes a box moves again.

Edges 0 to 2 are the tops of the boxes, 3 to 5 their bottoms, 6 to 9 the walls between them. An action is an edge.
"""

import numpy as np

from keima.games.game import (
    Actions,
    Game,
    Planes,
    Returns,
    Rules,
    States,
    final_score_kernel,
    legal_actions_kernel,
    no_chance,
    observe_kernel,
    query_kernel,
    returns_kernel,
    step_kernel,
)

EDGES = 10
DRAWN, LEAD, MOVER, WORDS = range(4)  # words: the edges, player 0's boxes minus player 1's, the player to move
BOXES = tuple(1 << box | 1 << 3 + box | 1 << 6 + box | 1 << 7 + box for box in range(3))
ALL = (1 << EDGES) - 1


@legal_actions_kernel
def legal_actions(state: States, out: Actions) -> int:
    count = 0
    for edge in range(EDGES):
        if state[DRAWN] >> edge & 1 == 0:
            out[count] = edge
            count += 1
    return count


@step_kernel
def step(state: States, action: int) -> None:
    before, after = state[DRAWN], state[DRAWN] | 1 << action
    state[DRAWN] = after
    boxes = 0
    for box in BOXES:
        boxes += int(after & box == box) - int(before & box == box)
    if boxes == 0:
        state[MOVER] = 1 - state[MOVER]
    else:
        state[LEAD] += boxes * (1 - 2 * state[MOVER])


@query_kernel
def current_player(state: States) -> int:
    return state[MOVER]


@query_kernel
def terminal(state: States) -> int:
    return int(state[DRAWN] == ALL)


@returns_kernel
def returns(state: States, out: Returns) -> None:
    won = np.float32(0.0)
    if state[DRAWN] == ALL:
        won = np.float32(state[LEAD] > 0) - np.float32(state[LEAD] < 0)
    out[0], out[1] = won, -won


@observe_kernel
def observe(state: States, planes: Planes) -> None:
    for edge in range(EDGES):
        planes[0, 0, edge] = state[DRAWN] >> edge & 1
        planes[1, 0, edge] = state[LEAD] * (1 - 2 * state[MOVER])


@query_kernel
def position_hash(state: States) -> int:
    return state[DRAWN] | (3 + state[LEAD] * (1 - 2 * state[MOVER])) << EDGES


@final_score_kernel
def final_score(state: States, ownership: Actions) -> int:
    ownership[:] = 0
    return 2 * state[LEAD]


def parse_action(text: str) -> int:
    """Parse the number of an edge."""
    if not text.isdecimal() or int(text) >= EDGES:
        raise ValueError(f"{text!r} is no edge")
    return int(text)


def dots_and_boxes() -> Game:
    """Three boxes in a row."""
    edges = np.arange(EDGES, dtype=np.int32)[None]
    return Game(
        name="dots_and_boxes",
        options={},
        rules_version=1,
        rules=Rules(legal_actions, step, current_player, terminal, returns, observe, position_hash, no_chance),
        start=np.zeros(WORDS, np.int64),
        num_players=2,
        num_actions=EDGES,
        observation_shape=(2, 1, EDGES),
        policy_planes=0,
        max_plies=EDGES,
        point_symmetries=edges,
        action_symmetries=edges,
        action_name=str,
        parse_action=parse_action,
        render=lambda state: f"{int(state[DRAWN]):010b}, {int(state[LEAD])} boxes ahead",
        final_score=final_score,
    )
