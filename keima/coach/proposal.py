"""Propose settings for a new game, from statistics of random games and a short benchmark on this machine."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from keima.base.files import write_atomically
from keima.base.system.limits import count_usable_cores
from keima.config.sections.search import SearchSettings
from keima.games import GAMES, Game, load_game
from keima.games.authoring.check import GameReport, examine_in_process
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.networks.network import build_network
from keima.self_play.tuning import measure_self_play_speed

SMALL, MIDDLE = 16, 64  # points of a board, up to which a smaller network will do
SHORT = 12  # mean plies of a game, up to which every move is searched fully and learned
ITERATION_PLIES = 30_000  # of new games in an iteration
PARALLEL_GAMES = 64
# Plies of self-play until a network plays sensibly, per point of the board and square root of the mean number of legal
# moves: within a factor of 1.7 of what tic-tac-toe, Connect Four, and Go on 7 x 7 and 9 x 9 took (docs/results).
PLIES_PER_POINT = 1200
WORKER_SHARE = 0.6  # of the cores' time; the learner has the rest


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Proposed settings and what to expect of them on this machine."""

    settings: dict[str, dict[str, Any]]  # sections of a config, without run and game
    games_per_second: float
    games: int  # until a network plays sensibly
    cores: int

    @property
    def hours(self) -> float:
        """The estimated hours until a network plays sensibly."""
        return self.games / self.games_per_second / 3600


def propose_settings(game: Game, report: GameReport) -> Proposal:
    """Return settings for a game, and their speed on this machine, measured with an untrained network."""
    settings = proposed_settings(game, report)
    search = SearchSettings(**settings["search"])
    cores = count_usable_cores()
    use_threads(1)
    evaluator = Evaluator(build_network(game, **settings["network"]), game, device="cpu", max_batch=PARALLEL_GAMES)
    evaluations = measure_self_play_speed(game, evaluator, search, PARALLEL_GAMES)
    full = search.full_search_probability
    per_move = full * search.num_simulations + (1 - full) * search.cheap_simulations
    plies = PLIES_PER_POINT * game.height * game.width * report.branching**0.5
    return Proposal(
        settings=settings,
        games_per_second=cores * WORKER_SHARE * evaluations / per_move / report.mean_plies,
        games=round(plies / report.mean_plies),
        cores=cores,
    )


def proposed_settings(game: Game, report: GameReport) -> dict[str, dict[str, Any]]:
    """Return the sections of a config for this game, without run and game."""
    points, short = game.height * game.width, report.mean_plies <= SHORT
    small, middle = points <= SMALL, points <= MIDDLE
    simulations = 32 if small else 96 if middle else 128
    games = max(100, min(2000, round(ITERATION_PLIES / report.mean_plies / 50) * 50))
    learned = games * report.mean_plies * (1.0 if short else 0.25)  # positions of an iteration with a full search
    return {
        "network": {
            "blocks": 2 if small else 4 if middle else 6,
            "channels": 16 if small else 64,
            "global_pooling": not small,
        },
        "search": {
            "num_simulations": simulations,
            "cheap_simulations": simulations // 4,
            "full_search_probability": 1.0 if short else 0.25,
            "dirichlet_alpha": float(f"{10 / report.branching:.2g}"),
            "temperature_halflife": float(max(1, round(min(max(game.height, game.width), report.mean_plies / 3)))),
            "opening_random_moves": float(max(1, round(report.mean_plies / 10))),
        },
        "training": {
            "batch_size": 128 if middle else 256,
            "learning_rate": 5e-3 if small else 2e-3,
            "learning_rate_schedule": "cosine",
            "ema_decay": 0.98 if small else 0.995,
            "games_per_iteration": games,
            "window": {"min_positions": _round_to_digits(learned / 2), "max_positions": _round_to_digits(40 * learned)},
        },
        "evaluation": {
            "every": 2,
            "num_simulations": simulations,
            "rating_games": 40 if game.num_players > 1 else 0,
            "score_games": 0 if game.num_players > 1 else 20,
        },
    }


def _round_to_digits(number: float) -> int:
    """Round a number to two digits, and to at least a batch."""
    return max(1000, int(float(f"{number:.2g}")))


def proposed_config(game: str, options: Mapping[str, Any], proposal: Proposal) -> str:
    """Return the proposed settings as a config, for a shipped game by its name, or for a user's file."""
    source = {"name": game} if game in GAMES else {"module": game}
    minutes = max(5, math.ceil(proposal.hours * 60 / 5) * 5)
    settings = {
        "run": {"name": Path(game).stem, "minutes": minutes},
        "game": {**source, "options": dict(options)},
        **proposal.settings,
    }
    return yaml.safe_dump(settings, sort_keys=False)


def write_proposal(game: Path, config: Path) -> None:
    """Check a user's game, and write proposed settings for it to the file ``config`` in the same folder.

    Raises:
        GameDoesNotAnswer: it does not even run.
        ValueError: it is not what a game must be.
        OSError: the file cannot be written.
    """
    report = examine_in_process(str(game.resolve()), {})
    if report.broken:
        raise ValueError(report.broken)
    proposal = propose_settings(load_game(str(game)), report)
    write_atomically(config, proposed_config(game.name, {}, proposal).encode(), mode=0o644)
