"""Measure the path of games to the learner: files of games against dense arrays, sampling against the Python interface.

    python benchmarks/speed/learner_feed.py --game go --size 9

The games are self-play with full searches by a fixed random linear network, whose policies are about as wide as those
of a half-trained network. The ratios are the result.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from keima.config.flags import whole
from keima.config.sections.search import SearchSettings
from keima.data.records import GameBatch, decode, encode
from keima.data.verify import verify
from keima.games import Game, load_game
from keima.replay.window import Batch, ReplayWindow
from keima.self_play.parallel_games import SelfPlay
from keima.worker.batching import gather

NUM_GAMES = 100  # of the batch
SAMPLES = 256  # per step


def fastest_seconds(work: Callable[[], Any], *, repeats: int = 10) -> float:
    """The seconds of the fastest of several runs, after a warm-up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def played(game: Game) -> GameBatch:
    """A batch of games by the random network."""
    random, inputs = np.random.default_rng(1), math.prod(game.observation_shape)
    weights = (random.normal(size=(inputs, game.num_actions + 1)) / 5).astype(np.float32)

    def evaluate(observations: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        outputs = observations.reshape(-1, inputs) @ weights
        return np.ascontiguousarray(outputs[:, :-1]), np.tanh(outputs[:, -1])

    play = SelfPlay(game, evaluate, SearchSettings(full_search_probability=1.0), parallel_games=NUM_GAMES)
    play.begin(range(1, NUM_GAMES + 1))
    records = []
    while play.num_playing:
        records += play.advance()
    names: dict[str, Any] = {
        "batch_id": "run1-worker1-000100",
        "run_id": "run1",
        "worker": "worker1",
        "game": game.name,
    }
    names |= {"options": game.options, "rules_version": game.rules_version, "first_game": 100}
    return GameBatch(**(names | gather(records)))


def dense_bytes(game: Game, batch: GameBatch) -> int:
    """The bytes of the batch as moves and dense float32 policies, with zstd at level 3."""
    policies = np.zeros((batch.num_positions, game.num_actions), np.float32)
    policies[np.repeat(np.arange(batch.num_positions), batch.policy_sizes), batch.policy_actions] = batch.policy_weights
    return len(zstandard.compress(batch.actions.tobytes() + batch.root_values.tobytes() + policies.tobytes(), 3))


def plain_samples(game: Game, batch: GameBatch) -> list[tuple[Any, ...]]:
    """The samples of one step, made through the game's Python interface, without symmetries and masks."""
    random, samples = np.random.default_rng(1), []
    for index in random.integers(0, batch.num_games, SAMPLES):
        record, state = batch.game_record(int(index)), game.initial_state()
        ply = int(random.integers(len(record.actions)))
        for action in record.actions[:ply]:
            game.play(state, int(action))
        policy, first = np.zeros(game.num_actions, np.float32), int(record.policy_sizes[:ply].sum())
        entries = slice(first, first + int(record.policy_sizes[ply]))
        policy[record.policy_actions[entries]] = record.policy_weights[entries] / max(
            1, record.policy_weights[entries].sum()
        )
        samples.append(
            (game.observe(state), policy, game.legal_actions(state), record.returns[game.current_player(state)])
        )
    return samples


def main() -> None:
    """Measure one game and print a table."""
    parser = argparse.ArgumentParser(description="Measure files of games and the learner's samples.")
    parser.add_argument("--game", default="connect_four")
    parser.add_argument("--size", type=whole(), help="of the board, for go")
    arguments = parser.parse_args()
    game = load_game(arguments.game, **({} if arguments.size is None else {"size": arguments.size}))
    batch = played(game)
    data = encode(batch)
    window = ReplayWindow(game, capacity_positions=10**6)
    while window.num_positions < 100_000:
        window.add(batch)
    space = Batch.empty(game, SAMPLES)
    sampling, plain = (
        fastest_seconds(lambda: window.sample(SAMPLES, 1, out=space)),
        fastest_seconds(lambda: plain_samples(game, batch), repeats=3),
    )
    entries = batch.policy_actions.size / (batch.policy_sizes > 0).sum()
    print(
        f"{game.name} {game.options}: {batch.num_positions / NUM_GAMES:.0f} positions a game, {entries:.1f} entries "
        "a policy"
    )
    print(
        f"file       {len(data) / NUM_GAMES:8,.0f} bytes a game, {dense_bytes(game, batch) / len(data):5.1f} times "
        "less than dense policies"
    )
    print(f"encode     {1000 * fastest_seconds(lambda: encode(batch)):8.2f} ms for {NUM_GAMES} games")
    print(f"decode     {1000 * fastest_seconds(lambda: decode(data)):8.2f} ms")
    print(f"verify     {1000 * fastest_seconds(lambda: verify(batch, game)):8.2f} ms")
    print(
        f"sample     {1000 * sampling:8.2f} ms for {SAMPLES} positions, {plain / sampling:5.0f} times faster "
        "than the Python interface"
    )


if __name__ == "__main__":
    main()
