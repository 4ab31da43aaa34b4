"""Trains and plays by Keima, as adapter.py says; this adapter alone runs in Keima's environment.

Up to 20 minutes the settings are those of configs/quickstart.yaml, beyond them those of configs/connect_four.yaml, both
made for two cores. A run measures its own strength now and then, in its time. Moves are chosen as in its matches.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from benchmarks.strength.peers.adapter import Choose, Positions, Task, Trained, run_adapter, write_trained
from keima.config.load import load_settings
from keima.evaluation.match_worker import make_match_search
from keima.evaluation.perfect_play import SolvedPositions, choose_policy_actions
from keima.games import Game, load_game
from keima.games.exact import ILLEGAL
from keima.networks.files.heading import find_run_model
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.play.arena.players import read_model

QUICKSTART_MINUTES = 20
QUICK = {
    "search.num_simulations": 8,
    "search.cheap_simulations": 4,
    "training.games_per_iteration": 50,
    "evaluation.every": 0,
}
RUN = "run"
BATCH = 64


def train(folder: Path, task: Task) -> None:
    """Train for the task's minutes."""
    config = ROOT / "configs" / ("quickstart.yaml" if task.minutes <= QUICKSTART_MINUTES else "connect_four.yaml")
    changes = {"run.minutes": task.minutes, "run.seed": task.seed, **(QUICK if task.settings == "quick" else {})}
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    line = [sys.executable, "-m", "keima", "train", "--config", str(config), "--run-dir", str(folder / RUN), *words]
    subprocess.run(line, cwd=ROOT, check=True)
    write_trained(folder, count_done(folder / RUN))


def count_done(run: Path) -> Trained:
    """Return what a run has done in its time; the measurement of its last network comes after that."""
    last = json.loads((run / "training_stats.json").read_text(encoding="utf-8"))[-1]
    workers = [json.loads(file.read_text(encoding="utf-8")) for file in run.glob("workers/*/worker.json")]
    return Trained(
        games=last["total_games"],
        positions=last["total_positions"],
        evaluations=sum(worker["evaluations"] for worker in workers),
        seconds=last["seconds"] - last["waits"]["evaluation"],
    )


def make_player(folder: Path, task: Task, simulations: int) -> Choose:
    """Return what chooses moves with the run's newest network."""
    use_threads(1)
    settings, model = load_settings(folder / RUN / "config.yaml"), read_model(find_run_model(folder / RUN, None))
    game = load_game(settings.game.name, **settings.game.options)
    search = make_match_search(game, model, settings.search, num_simulations=simulations, cached=True, device="cpu")
    evaluate = Evaluator(model.build(game), game, device="cpu", max_batch=BATCH)

    def choose(positions: Positions) -> tuple[list[int], list[int]]:
        replayed = replay(game, positions)
        policy = choose_policy_actions(replayed, evaluate, batch_size=BATCH)
        return search.find(replayed.states).actions.tolist(), policy.tolist()

    return choose


def replay(game: Game, positions: Positions) -> SolvedPositions:
    """Return the positions after these moves; a move's value says only whether it is legal."""
    states, values = game.initial_states(len(positions)), np.full((len(positions), game.num_actions), ILLEGAL, np.int8)
    for state, moves, legal in zip(states, positions, values, strict=True):
        for column in moves:
            game.play(state, column)
        legal[game.legal_actions(state)] = 0
    observations = np.stack([game.observe(state) for state in states])
    return SolvedPositions(states, observations, values)


if __name__ == "__main__":
    run_adapter(train, make_player, sys.argv[1:])
