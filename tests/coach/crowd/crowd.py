"""A run whose workers are honest or not: real games, received by a real ledger."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from keima.base.random import seed_stream
from keima.coach.crowd.checker import Checker, Terms
from keima.config.sections.search import SearchSettings
from keima.data.ledger import Ledger, open_ledger, read_ledger
from keima.data.ledger_rows import make_model_row, model_path
from keima.data.receive import Receipt, receive_batch
from keima.data.records import GameRecord, encode_batch
from keima.games import Game, load_game
from keima.networks.architectures.resnet import ResNet
from keima.networks.files.model import Model, decode_model, encode_model
from keima.networks.inference.evaluator import Evaluator
from keima.search.puct import Evaluate
from keima.self_play.parallel_games import SelfPlay
from keima.worker.batching import make_batch
from tests.coach.crowd.lies import add_noise, flip_result, flip_values, make_constant, play_tic_tac_toe
from tests.small_networks import look_trained
from tests.small_run import new_model

RUN_SEED = 7
BATCH = 10  # games
SEARCH = SearchSettings.model_validate(
    {
        "num_simulations": 20,
        "cheap_simulations": 5,
        "opening_random_moves": 1.0,
        "resignation": {"enabled": True, "threshold": 0.4, "consecutive": 1},
    }
)


@dataclass(kw_only=True)
class Run:
    """A run with published models and any number of workers."""

    folder: Path
    ledger: Ledger
    game: Game
    search: SearchSettings = SEARCH
    models: dict[int, Model] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)  # games of each worker
    sent: dict[str, int] = field(default_factory=dict)
    processes: dict[str, int] = field(default_factory=dict)  # where each worker's present process has begun

    def publish(self, version: int) -> None:
        """Publish a network that looks trained."""
        model = new_model(self.game, version)
        network = model.build(self.game)
        assert isinstance(network, ResNet)
        look_trained(network, 0.5)
        model = replace(model, weights=network.state_dict())
        data = encode_model(model, self.game)
        path = model_path(self.folder, version)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        self.ledger.add_model(make_model_row(self.folder, version, iteration=0, data=data, accepted=True))
        self.models[version] = decode_model(data)  # with the rounded weights that workers get

    def network(self, version: int, *, dtype: str = "float32") -> Evaluator:
        return Evaluator(self.models[version].build(self.game), self.game, device="cpu", dtype=dtype)

    def play(
        self,
        worker: str,
        count: int,
        *,
        version: int = 1,
        dtype: str = "float32",
        parallel_games: int = BATCH,
        evaluate: Evaluate | None = None,
        search: SearchSettings | None = None,
        new_models: Sequence[int] = (),
        new_model_every: int = 40,
    ) -> list[GameRecord]:
        """Play the next games of a worker.

        Args:
            evaluate: what the worker uses for a network, if not the model.
            search: how it searches, if not as told.
            new_models: that come while it plays, one after so many evaluations each.
        """
        network = self.network(version, dtype=dtype)
        self_play = SelfPlay(
            self.game, evaluate or network, search or self.search, parallel_games=min(count, parallel_games)
        )
        self_play.change_model(version)
        coming, found, left, steps = list(new_models), list[GameRecord](), count, 0
        start, first = self.processes.setdefault(worker, 0), self.begun.get(worker, 0)
        while left or self_play.num_playing:
            ready = min(left, self_play.num_idle())
            numbers = range(first + count - left, first + count - left + ready)
            self_play.begin([seed_stream(RUN_SEED, worker, start, number) for number in numbers])
            left -= ready
            found += self_play.advance()
            steps += 1
            if coming and steps % new_model_every == 0:
                network.load(self.models[coming[0]].weights)
                self_play.change_model(coming.pop(0))
        self.begun[worker] = first + count
        return found

    def begin_process(self, worker: str) -> None:
        """Let the worker's next games be those of a new process."""
        self.begun[worker] = self.processes[worker] = self.sent.get(worker, 0)

    def send(self, worker: str, records: Sequence[GameRecord], *, game: Game | None = None) -> Receipt:
        """Let the Coach receive a batch of games; a ``game`` is what the batch says that it holds."""
        game = game or self.game
        first = self.sent.get(worker, 0)
        self.ledger.grant(worker, max(0, first + 3 * BATCH - self.ledger.account(worker).granted))
        batch = make_batch(
            records,
            run_id=self.ledger.run_id,
            worker=worker,
            game=game.name,
            options=game.options,
            rules_version=game.rules_version,
            first_game=first,
        )
        self.sent[worker] = first + len(records)
        data = encode_batch(batch)
        return receive_batch(self.ledger, self.game, worker=worker, batch_id=batch.batch_id, fetch=lambda limit: data)

    @contextmanager
    def checker(self, *, share: float = 0.02) -> Iterator[Checker]:
        """Yield a checker of this run, as its process opens it."""
        with read_ledger(self.folder) as ledger:
            yield Checker(ledger, self.game, Terms(seed=RUN_SEED, search=self.search), share=share, secret=1)


@contextmanager
def open_run(
    folder: Path, *, game: str = "connect_four", versions: int = 2, search: SearchSettings = SEARCH
) -> Iterator[Run]:
    """Yield a run with so many published models."""
    loaded = load_game(game)
    with open_ledger(folder, loaded) as ledger:
        run = Run(folder=folder, ledger=ledger, game=loaded, search=search)
        for version in range(1, versions + 1):
            run.publish(version)
        yield run


def check_all(checker: Checker) -> None:
    """Let a checker do all that there is to do."""
    while checker.step():
        pass


# Liars: each makes the batches of a worker, one after the other.

Play = Callable[[Run, str], Iterator[list[GameRecord]]]


def play_honestly(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    while True:
        yield run.play(worker, BATCH, version=2)


def answer_without_network(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    while True:
        yield run.play(worker, BATCH, version=2, evaluate=make_constant(run.game))


def use_an_old_model(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    while True:
        yield run.play(worker, BATCH, version=2, evaluate=run.network(1))


def flip_all_results(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    for records in play_honestly(run, worker):
        yield [flip_result(record) for record in records]


def resign_for_the_winner(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    """Let the winner resign: the last move is left out, so that the winner is to move."""
    for records in play_honestly(run, worker):
        yield [
            cut(flip_result(record), len(record.actions) - 1) if record.resigned and len(record.actions) > 1 else record
            for record in records
        ]


def cut(record: GameRecord, plies: int) -> GameRecord:
    """Return the first moves of a game."""
    entries = int(record.policy_sizes[:plies].sum())
    moves = ("actions", "root_values", "flags", "surprise", "policy_sizes")
    return replace(
        record,
        policy_actions=record.policy_actions[:entries],
        policy_weights=record.policy_weights[:entries],
        **{name: getattr(record, name)[:plies] for name in moves},
    )


def flip_all_values(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    for records in play_honestly(run, worker):
        yield [flip_values(record) for record in records]


def copy_own_games(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    """Send the first games again and again, with new seeds."""
    first = run.play(worker, BATCH, version=2)
    yield first
    while True:
        start, number = run.processes[worker], run.begun[worker]
        run.begun[worker] += BATCH
        yield [replace(record, seed=seed_stream(RUN_SEED, worker, start, number + i)) for i, record in enumerate(first)]


def repeat_own_games(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    """Send the first games again and again, in another order."""
    first = run.play(worker, BATCH, version=2)
    while True:
        yield first
        first = [*first[1:], first[0]]


def copy_games_of_another(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    yield from play_honestly(run, f"{worker}-victim")


def search_a_tenth(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    search = run.search.model_copy(update={"num_simulations": run.search.num_simulations // 10, "cheap_simulations": 1})
    while True:
        yield run.play(worker, BATCH, version=2, search=search)


def add_noise_to_targets(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    rng = np.random.default_rng(1)
    for records in play_honestly(run, worker):
        yield [add_noise(record, rng) for record in records]


def imitate_imported_games(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    for records in play_honestly(run, worker):
        yield [replace(record, first_model=0) for record in records]


def play_another_game(run: Run, worker: str) -> Iterator[list[GameRecord]]:
    """Send games of tic-tac-toe, as if they were of the run's game."""
    rng, number = np.random.default_rng(1), 0
    while True:
        seeds = [seed_stream(RUN_SEED, worker, 0, number + i) for i in range(BATCH)]
        number += BATCH
        yield play_tic_tac_toe(run.search, seeds, rng, model=2)


LIARS: dict[str, Play] = {
    "a constant policy": answer_without_network,
    "an old model": use_an_old_model,
    "flipped results": flip_all_results,
    "winners that resign": resign_for_the_winner,
    "flipped values": flip_all_values,
    "its own games with new seeds": copy_own_games,
    "its own games again": repeat_own_games,
    "games of another worker": copy_games_of_another,
    "a tenth of the simulations": search_a_tenth,
    "noise in the targets": add_noise_to_targets,
    "imported games": imitate_imported_games,
    "games of another game": play_another_game,
}
