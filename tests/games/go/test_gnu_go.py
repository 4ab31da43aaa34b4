"""GNU Go agrees on stones, captures, legal plays and kos in random games and in its own games, and on their scores.

There are two known differences, and every difference found must be one of them. Where suicide is allowed, GNU Go also
allows one that repeats a position. And it does not count empty points surrounded only by stones in seki, although by
area they are territory. It would count stones that it considers dead as captured; since it plays with
``--capture-all-dead``, none may be left.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from keima.games import Game, load_game
from keima.games.game import States
from keima.games.go.rules import score_lead
from keima.play.arena.ladder import make_go_command
from keima.play.engines.gtp_client import COLORS, GtpClient, GtpPlayer
from tests.games.go.naive_go import NaiveGo
from tests.programs import needs_gnu_go

pytestmark = needs_gnu_go

PARCEL = 50  # positions about which GNU Go is asked at once
QUESTIONS = (*(f"list_stones {color}" for color in COLORS), *(f"captures {color}" for color in COLORS))


def random_game(game: Game, random: np.random.Generator) -> list[int]:
    """Return a game of random moves with few passes, so that it is long and full of kos."""
    state, actions = game.initial_state(), list[int]()
    while len(legal := game.legal_actions(state)):
        plays = legal[:-1] if len(legal) > 1 and random.random() > 0.02 else legal
        actions.append(int(random.choice(plays)))
        game.play(state, actions[-1])
    return actions


def engine_game(game: Game, players: Sequence[GtpPlayer], random: np.random.Generator) -> list[int]:
    """Return a game that GNU Go plays against itself, after two random moves."""
    state, actions = game.initial_state(), list[int]()
    while not game.terminal(state):
        if len(actions) < 2:
            action = int(random.choice(game.legal_actions(state)[:-1]))
        else:
            action = int(
                players[len(actions) % 2].choose_with_history(state[None], game.initial_states(1), [actions])[0]
            )
        actions.append(action)
        game.play(state, action)
    return actions


def states_of(game: Game, actions: Sequence[int]) -> Iterator[States]:
    """Return the positions of a game, including the first and the last."""
    state = game.initial_state()
    yield state.copy()
    for action in actions:
        game.play(state, action)
        yield state.copy()


def compare(engine: GtpClient, game: Game, actions: Sequence[int]) -> tuple[int, int]:
    """Compare all positions of a game with GNU Go; return how many there were, and in how many of them superko forbade
    a play.
    """
    engine.ask(f"boardsize {game.options['size']}", f"komi {game.options['komi']:g}", "clear_board")
    states, kos = list(states_of(game, actions)), 0
    for begin in range(0, len(states), PARCEL):
        numbers = range(begin, min(begin + PARCEL, len(states)))
        commands = [command for number in numbers for command in asked(game, actions, number)]
        answers = iter(engine.ask(*commands))
        for number in numbers:
            if number:
                next(answers)
            found = [next(answers) for _ in range(len(QUESTIONS) + 1)]
            agree(game, states[number], actions[:number], found)
            kos += bool(game.observe(states[number])[5].any())
    return len(states), kos


def asked(game: Game, actions: Sequence[int], number: int) -> list[str]:
    """Return the commands that describe the position after this many moves to GNU Go and ask about it."""
    play = [f"play {COLORS[(number - 1) % 2]} {game.action_name(actions[number - 1])}"] if number else []
    return [*play, *QUESTIONS, f"all_legal {COLORS[number % 2]}"]


def agree(game: Game, state: States, actions: Sequence[int], found: Sequence[str]) -> None:
    """Assert that our position is GNU Go's."""
    points = game.options["size"] ** 2
    mine, theirs = (set(np.flatnonzero(plane).tolist()) for plane in game.observe(state)[:2])
    ours = (mine, theirs) if len(actions) % 2 == 0 else (theirs, mine)
    assert [{game.parse_action(word) for word in stones.split()} for stones in found[:2]] == list(ours)
    played = [sum(action < points for action in actions[color::2]) for color in range(2)]
    assert [int(count) for count in found[2:4]] == taken(game, played, ours)
    if not game.terminal(state):
        legal, other = (
            set(game.legal_actions(state).tolist()) - {points},
            {game.parse_action(word) for word in found[4].split()},
        )
        assert legal <= other
        if other - legal:
            assert other - legal == returning_suicides(game, actions)


def taken(game: Game, played: Sequence[int], stones: Sequence[set[int]]) -> list[int]:
    """Return how many stones each color has captured; its own suicides count for the other."""
    return [played[1 - color] - len(stones[1 - color]) for color in range(2)]


def returning_suicides(game: Game, actions: Sequence[int]) -> set[int]:
    """Return the suicides that would repeat a position."""
    naive = NaiveGo(**game.options)
    for action in actions:
        naive.apply_action(action)
    assert game.options["suicide"]
    return {
        action
        for action, (verdict, board) in naive.plays().items()
        if verdict == "repeats" and naive.point(action) not in board
    }


def look_at_random_games(options: dict[str, Any], *, positions: int) -> tuple[int, int]:
    """Compare this many positions; return how many there were, and in how many superko forbade a play."""
    game, random = load_game("go", **options), np.random.default_rng(options["size"])
    seen = kos = 0
    with GtpClient(make_go_command(game, "gnugo", 1)) as engine:
        while seen < positions:
            more = compare(engine, game, random_game(game, random))
            seen, kos = seen + more[0], kos + more[1]
    return seen, kos


def look_at_engine_games(options: dict[str, Any], level: int, *, positions: int) -> tuple[int, int]:
    """Compare positions of GNU Go's own games, and the scores; return the numbers of positions and games."""
    game, random = load_game("go", **options), np.random.default_rng(level)
    seen = count = 0
    with GtpClient(make_go_command(game, "gnugo", level)) as engine:
        players = [GtpPlayer(game, engine, seed=seed, seconds=120.0) for seed in (1, 2)]
        while seen < positions:
            actions = engine_game(game, players, random)
            seen, count = seen + compare(engine, game, actions)[0], count + 1
            *_, last = states_of(game, actions)
            final, dead, seki = engine.ask(
                "final_score", "final_status_list dead", "final_status_list seki", seconds=300.0
            )
            lead = score_lead(last) - eyes_in_seki(game, actions, {game.parse_action(word) for word in seki.split()})
            assert (told(lead), dead) == (final, ""), " ".join(map(game.action_name, actions))
    return seen, count


def eyes_in_seki(game: Game, actions: Sequence[int], seki: set[int]) -> int:
    """Return Black's empty points surrounded only by stones in seki, minus White's."""
    naive = NaiveGo(**game.options)
    for action in actions:
        naive.apply_action(action)
    unseen, lead = set(naive.around) - set(naive.board), 0
    while unseen:
        region = naive.chain(naive.board, unseen.pop())
        unseen -= region
        stones = naive.border(region)
        if len({naive.board[stone] for stone in stones}) == 1 and {naive.action(stone) for stone in stones} <= seki:
            lead += len(region) * (1 if naive.board[stones.pop()] == 0 else -1)
    return lead


def told(lead: float) -> str:
    """Return a score in GTP's format."""
    return f"{'B' if lead > 0 else 'W'}+{abs(lead):.1f}" if lead else "0"


@pytest.mark.parametrize(
    "options",
    [{"size": 5, "max_plies": 250}, {"size": 6, "max_plies": 150, "suicide": True, "komi": -2.5}, {"size": 9}],
)
def test_gnu_go_agrees_on_random_games(options: dict[str, Any]) -> None:
    assert look_at_random_games(options, positions=500)[0] >= 500


def test_gnu_go_agrees_on_a_game_of_its_own_and_its_score() -> None:
    assert look_at_engine_games({"size": 5, "komi": 0.5}, 1, positions=15)[0] >= 15


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ({"size": 5, "max_plies": 250}, 30_000),
        ({"size": 5, "max_plies": 250, "suicide": True}, 20_000),
        ({"size": 7, "max_plies": 300}, 20_000),
        ({"size": 9, "max_plies": 400, "komi": 5.5}, 15_000),
        ({"size": 10}, 5_000),
        ({"size": 13}, 5_000),
        ({"size": 19, "suicide": True}, 5_000),
    ],
)
def test_gnu_go_agrees_on_100_000_positions_of_random_games(options: dict[str, Any], positions: int) -> None:
    seen, kos = look_at_random_games(options, positions=positions)
    assert kos > seen // 2000


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("options", "level", "positions"),
    [
        ({"size": 5, "komi": 24}, 10, 200),
        ({"size": 7, "komi": 9}, 1, 400),
        ({"size": 7, "komi": 8.5}, 10, 600),
        ({"size": 9, "komi": 7}, 1, 400),
        ({"size": 9, "komi": 7.5}, 10, 300),
        ({"size": 13, "komi": 7.5}, 1, 300),
    ],
)
def test_gnu_go_agrees_on_2000_positions_of_its_own_games(options: dict[str, Any], level: int, positions: int) -> None:
    assert look_at_engine_games(options, level, positions=positions)[0] >= positions
