"""Lies about games, for tests and for ``benchmarks/cluster/playing_volunteers.py``."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from keima.config.sections.search import SearchSettings
from keima.data.records import GameRecord
from keima.games import Game, load_game
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay


def flip_result(record: GameRecord) -> GameRecord:
    """Swap winner and loser where the rules do not tell who won: where somebody has resigned."""
    return replace(record, returns=-record.returns, resigned=3 - record.resigned) if record.resigned else record


def flip_values(record: GameRecord) -> GameRecord:
    """Turn the values of the searches round."""
    return replace(record, root_values=-record.root_values)


def add_noise(record: GameRecord, rng: np.random.Generator) -> GameRecord:
    """Add noise to the visits, which are the policy's targets."""
    noise = rng.uniform(0, 2, len(record.policy_weights))
    weights = np.maximum(1, record.policy_weights * noise).round().astype(np.uint16)
    return replace(record, policy_weights=weights)


def make_constant(game: Game) -> Evaluate:
    """Return what answers without a network: the same for all positions."""

    def answer(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = len(observations)
        return np.zeros((count, game.num_actions), np.float32), np.zeros(count, np.float32)

    return answer


def play_tic_tac_toe(
    search: SearchSettings, seeds: Sequence[int], rng: np.random.Generator, *, model: int
) -> list[GameRecord]:
    """Return games of tic-tac-toe, for a run of another game, with a network of random answers."""
    game = load_game("tic_tac_toe")

    def answer(observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        count = len(observations)
        return rng.normal(size=(count, game.num_actions)).astype(np.float32), np.zeros(count, np.float32)

    self_play = SelfPlay(game, answer, search, parallel_games=len(seeds))
    self_play.change_model(model)
    self_play.begin(list(seeds))
    found = list[GameRecord]()
    while self_play.num_playing:
        found += self_play.advance()
    return found
