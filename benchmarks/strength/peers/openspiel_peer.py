"""Trains and plays by OpenSpiel's AlphaZero in Python; see adapter.py.

The settings *authors* are the defaults of the flags of OpenSpiel's example, open_spiel/python/examples/alpha_zero.py;
the time replaces its number of steps, and each step keeps its checkpoint. OpenSpiel's network takes the planes of
Connect Four, [3, 6, 7], as a board of 3 x 6 points with 7 channels. The seed has no influence, since OpenSpiel's actors
draw from the operating system.

OpenSpiel evaluates one position at a time and lets JAX run each operation by itself, which takes some hundred times as
long as the operations compiled together. With the settings *tuned*, the actors compile them, and with all settings
those who choose moves do: this changes the time alone.
"""

import copy
import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import jax
import numpy as np
import pyspiel
from open_spiel.python.algorithms.alpha_zero import alpha_zero
from open_spiel.python.algorithms.alpha_zero.evaluator import AlphaZeroEvaluator
from open_spiel.python.algorithms.mcts import MCTSBot, SearchNode

from benchmarks.strength.peers.adapter import Choose, Positions, Task, Trained, end_on_time, run_adapter

AUTHORS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "weight_decay": 1e-4,
    "decouple_weight_decay": False,
    "train_batch_size": 128,
    "replay_buffer_size": 8192,
    "replay_buffer_reuse": 4,
    "actors": 2,
    "evaluators": 2,
    "evaluation_window": 50,
    "eval_levels": 7,
    "uct_c": 1.41,
    "max_simulations": 40,
    "policy_alpha": 1.0,
    "policy_epsilon": 0.25,
    "temperature": 1.0,
    "temperature_drop": 2,
    "nn_model": "resnet",
    "nn_width": 256,
    "nn_depth": 2,
    "nn_api_version": "linen",
}
TUNED = {
    **AUTHORS,
    "evaluators": 0,
    "max_simulations": 32,
    "temperature_drop": 10,
    "nn_width": 32,
    "nn_depth": 4,
    "nn_api_version": "nnx",
}
QUICK = {**TUNED, "max_simulations": 2, "replay_buffer_size": 256}
SETTINGS = {"authors": AUTHORS, "tuned": TUNED, "quick": QUICK}
COMPILING = {"tuned", "quick"}  # settings
COMPILE = "KEIMA_PEERS_COMPILE"  # a variable of the processes that OpenSpiel starts
GAME = "connect_four"
CHECKPOINTS = "checkpoints"
INIT_MODEL = alpha_zero._init_model_from_config
MOVE, MISSES = re.compile(r"\b[xo]\d\b"), re.compile(r"Inference cache:.*misses=(\d+)")


def make_config(folder: Path, task: Task) -> alpha_zero.Config:
    """Return OpenSpiel's description of a training without end."""
    game = pyspiel.load_game(GAME)
    return alpha_zero.Config(
        game=GAME,
        path=str(folder / CHECKPOINTS),
        max_steps=0,
        checkpoint_freq=1,
        observation_shape=game.observation_tensor_shape(),
        output_size=game.num_distinct_actions(),
        verbose=False,
        quiet=True,
        **SETTINGS[task.settings],
    )


def count_done(folder: Path) -> Trained:
    """Return what the actors have done, as their logs say.

    A log has the moves of each game, and how many positions a network has evaluated when the next one takes its place.
    The last network is taken to evaluate as many a move as those before it.
    """
    games = positions = counted = evaluations = 0
    for log in (folder / CHECKPOINTS).glob("log-actor-*.txt"):
        played = replaced = 0
        for line in log.read_text(encoding="utf-8").splitlines():
            if "Actions:" in line:
                games += 1
                played += len(MOVE.findall(line))
            elif found := MISSES.search(line):
                evaluations += int(found[1])
                replaced = played
        positions += played
        counted += replaced
    return Trained(
        games=games, positions=positions, evaluations=round(evaluations * positions / counted) if counted else None
    )


def compile_inference(model: Any) -> Any:
    """Let a model evaluate a position by one compiled function; return the model."""

    @jax.jit
    def infer(state: Any, observation: Any, legal: Any) -> tuple[Any, Any]:
        same = copy.copy(model)
        same._state = state
        return type(model).inference(same, observation, legal)

    def infer_on_host(observation: np.ndarray, legal: np.ndarray) -> tuple[float, np.ndarray]:
        value, policy = infer(model._state, observation, legal)
        return float(value), np.asarray(policy)

    model.inference = infer_on_host
    return model


def init_compiled_model(config: alpha_zero.Config) -> Any:
    """Return a new model for an actor, which OpenSpiel calls in place of its own function."""
    return compile_inference(INIT_MODEL(config))


if COMPILE in os.environ:  # spawned processes import this module before they begin
    alpha_zero._init_model_from_config = init_compiled_model


def train(folder: Path, task: Task) -> None:
    """Train until the time is over."""
    end_on_time(folder, task, lambda: count_done(folder))
    if task.settings in COMPILING:
        os.environ[COMPILE] = "1"
    alpha_zero.alpha_zero(make_config(folder, task))


def load_model(folder: Path, task: Task) -> Any:
    """Return the last network of a training."""
    config = make_config(folder, task)
    model = compile_inference(INIT_MODEL(config))
    names = (path.name for path in Path(config.path).iterdir())
    model.load_checkpoint(max(int(found[1]) for name in names if (found := re.fullmatch(r"checkpoint-(\d+)", name))))
    return model


def make_player(folder: Path, task: Task, simulations: int) -> Choose:
    """Return what chooses moves with the last network of a training, as OpenSpiel's evaluators do."""
    game = pyspiel.load_game(GAME)
    evaluator = AlphaZeroEvaluator(game, load_model(folder, task))
    bot = MCTSBot(
        game,
        SETTINGS[task.settings]["uct_c"],
        simulations,
        evaluator,
        solve=False,
        random_state=np.random.RandomState(task.seed),
        child_selection_fn=SearchNode.puct_value,
        dont_return_chance_node=True,
    )

    def choose(positions: Positions) -> tuple[list[int], list[int]]:
        search, policy = list[int](), list[int]()
        for moves in positions:
            state = game.new_initial_state()
            for column in moves:
                state.apply_action(column)
            search.append(int(bot.step(state)))
            policy.append(int(max(evaluator.prior(state), key=lambda prior: prior[1])[0]))
        return search, policy

    return choose


if __name__ == "__main__":
    run_adapter(train, make_player, sys.argv[1:])
