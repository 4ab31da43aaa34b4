"""Let honest and lying machines join a run, all in one process; ``benchmarks/strength/crowd_with_liars.py`` starts it.

The arguments are the folder of the run, the number of honest machines and that of liars. Each machine speaks with the
door over TLS as ``keima join`` does, and has the ordinary worker on an ordinary folder. The workers take turns in this
process, a step each, so that sixty of them need the memory of one. The kinds of liars are those of ``LIARS``, in turns.
It ends when the run has ended, or lets nobody in any more.
"""

import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from keima.base.random import seed_stream
from keima.base.system.processes import die_with_starter
from keima.cluster.http.client import DoorClient
from keima.cluster.http.joining import CannotJoin, JoinedMachine, Membership, _Member
from keima.cluster.http.links import read_door_address, read_links
from keima.cluster.http.protocol import Registration
from keima.config.sections.crowd import CROWD_NAME
from keima.data.records import GameRecord
from keima.games import Game
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.search.puct import Evaluate
from keima.self_play.groups import ParallelGames
from keima.worker.loop import Worker
from keima.worker.playing import Playing
from keima.worker.worker_folder import Assignment
from tests.coach.crowd.lies import add_noise, flip_result, flip_values, make_constant, play_tic_tac_toe

START_SECONDS = 300.0
REMEMBERED = 10  # games that a liar copies


class UsesNoNetwork(Worker):
    """A constant policy: the network is never asked."""

    def make_self_play(self, game: Game, evaluate: Evaluate, assignment: Assignment) -> ParallelGames:
        """See ``Worker``."""
        return super().make_self_play(game, make_constant(game), assignment)


class UsesAnOldModel(Worker):
    """Plays on with its first model, and names the newest."""

    def _start_playing(self, model: Model, game: Game, assignment: Assignment) -> Playing:
        self._old = Evaluator(model.build(game), game, device="cpu")
        return super()._start_playing(model, game, assignment)

    def make_self_play(self, game: Game, evaluate: Evaluate, assignment: Assignment) -> ParallelGames:
        """See ``Worker``."""
        return super().make_self_play(game, self._old, assignment)


class SearchesLess(Worker):
    """Makes a tenth of the simulations."""

    share = 0.1

    def make_self_play(self, game: Game, evaluate: Evaluate, assignment: Assignment) -> ParallelGames:
        """See ``Worker``."""
        told = assignment.search
        fewer = {
            name: max(1, round(self.share * getattr(told, name))) for name in ("num_simulations", "cheap_simulations")
        }
        return super().make_self_play(
            game, evaluate, assignment.model_copy(update={"search": told.model_copy(update=fewer)})
        )


class SearchesHalf(SearchesLess):
    """Makes half of the simulations."""

    share = 0.5


class ChangesGames(Worker):
    """Plays as it is told, and changes its games."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._kept = list[GameRecord]()
        self._random = np.random.default_rng(secrets.randbits(64))

    def store(self, playing: Playing, record: GameRecord) -> None:
        """See ``Worker``."""
        super().store(playing, self.change(record))

    def change(self, record: GameRecord) -> GameRecord:
        """Return what is handed in in place of a game."""
        raise NotImplementedError


class FlipsResults(ChangesGames):
    """Says that the loser won where somebody has resigned, which the rules cannot tell, and else in one of ten games.

    A result against the rules is refused at once, with the whole batch.
    """

    def change(self, record: GameRecord) -> GameRecord:
        """See ``ChangesGames``."""
        if record.resigned or self._random.random() >= 0.1:
            return flip_result(record)
        return replace(record, returns=-record.returns)


class FlipsValues(ChangesGames):
    """Turns the values of its searches round."""

    def change(self, record: GameRecord) -> GameRecord:
        """See ``ChangesGames``."""
        return flip_values(record)


class AddsNoise(ChangesGames):
    """Adds noise to the visits, which are the policy's targets."""

    def change(self, record: GameRecord) -> GameRecord:
        """See ``ChangesGames``."""
        return add_noise(record, self._random)


class CopiesGames(ChangesGames):
    """Hands in its first games again and again, with new seeds."""

    def change(self, record: GameRecord) -> GameRecord:
        """See ``ChangesGames``."""
        if len(self._kept) < REMEMBERED:
            self._kept.append(record)
            return record
        return replace(self._kept[self._random.integers(REMEMBERED)], seed=record.seed)


class RepeatsGames(CopiesGames):
    """Hands in its first games again and again, as they were."""

    def change(self, record: GameRecord) -> GameRecord:
        """See ``ChangesGames``."""
        changed = super().change(record)
        return changed if changed is record else self._kept[self._random.integers(REMEMBERED)]


class PlaysAnotherGame(ChangesGames):
    """Hands in games of tic-tac-toe."""

    def change(self, record: GameRecord) -> GameRecord:
        """See ``ChangesGames``."""
        if not self._kept and self.assignment:
            seeds = [seed_stream(self.assignment.seed, "tic_tac_toe", number) for number in range(REMEMBERED)]
            self._kept = play_tic_tac_toe(self.assignment.search, seeds, self._random, model=1)
        other = self._kept[self._random.integers(len(self._kept))]
        return replace(other, seed=record.seed, first_model=record.first_model, last_model=record.last_model)


LIARS: dict[str, type[Worker]] = {
    "constant": UsesNoNetwork,
    "oldmodel": UsesAnOldModel,
    "results": FlipsResults,
    "copies": CopiesGames,
    "tenth": SearchesLess,
    "othergame": PlaysAnotherGame,
    "noise": AddsNoise,
    "half": SearchesHalf,
    "values": FlipsValues,
    "repeats": RepeatsGames,
}


class PlayingMachine(JoinedMachine):
    """A machine that joins, whose workers take turns with those of others."""

    def __init__(self, worker: type[Worker], *given: object, **options: object) -> None:
        super().__init__(*given, **options)  # type: ignore[arg-type]
        self._worker_class, self._workers = worker, dict[str, Worker]()

    def _keep_running(self, member: _Member) -> None:
        """Let a worker take a step."""
        if not member.stamp:
            return
        if member.name not in self._workers:
            self._workers[member.name] = self._worker_class(member.folder.root)
        worker = self._workers[member.name]
        if worker.stopping:
            if not member.ended:
                worker.flush()
                worker.beat("ended")
            member.ended = True
        else:
            worker.cycle()


def join_run(run_dir: Path, folder: Path, names: Sequence[str]) -> list[PlayingMachine]:
    """Let machines of these names join; those that are named as ``LIARS`` lie."""
    link = read_door_address(run_dir / CROWD_NAME).with_secret(read_links(run_dir / CROWD_NAME)[0].secret)
    machines = []
    for name in names:
        key = secrets.token_urlsafe(32)
        client = DoorClient(link, key=key)
        run = client.read_run()
        workers = client.register(Registration(name=name, workers=1, key=key)).workers
        member = Membership(link=str(link), key=key, name=name, workers=workers)
        place, worker = folder / name, LIARS.get(name.rstrip("0123456789"), Worker)
        machines.append(PlayingMachine(worker, client, member, place, run_id=run.run_id, code=run.code))
    return machines


def main() -> None:
    """Join, and play until the run has ended."""
    die_with_starter(signal.SIGTERM)
    run_dir, honest, liars = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    use_threads(1)
    until = time.monotonic() + START_SECONDS
    while not (run_dir / CROWD_NAME / "door.json").exists():
        if time.monotonic() > until:
            raise SystemExit("the run does not start")
        time.sleep(0.5)
    kinds = list(LIARS)
    names = [f"honest{number}" for number in range(1, honest + 1)]
    names += [f"{kinds[number % len(kinds)]}{number // len(kinds) + 1}" for number in range(liars)]
    with tempfile.TemporaryDirectory(prefix="keima-volunteers-") as folder:
        machines = join_run(run_dir, Path(folder), names)
        while machines:
            for machine in list(machines):
                try:
                    machine.step()
                except CannotJoin as error:
                    print(f"{machine._membership.name}: {error}", flush=True)
                    machines.remove(machine)
                    continue
                if machine.has_run_ended:
                    machine._hand_in_last_games()
                    machines.remove(machine)


if __name__ == "__main__":
    main()
