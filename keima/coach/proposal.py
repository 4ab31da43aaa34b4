"""Choose the settings of a run by rules, from the game, this machine's speed and the time given.

The game is known from random games (``GameReport``), the machine from seconds of self-play with an untrained network.
The rules are the formulas below. Where they name no paper, they were fitted to the shipped configs, whose runs are in
docs/results: Connect Four for 28 minutes on two cores with AVX-512, Go on 7 x 7 for 55 and on 9 x 9 for 118 minutes.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from keima.base.reports.formats import format_duration
from keima.base.run_folder import check_run_folder
from keima.base.system.limits import count_usable_cores
from keima.coach.bounds import FEWEST_POSITIONS, choose_batch_size
from keima.coach.stages import check_stages, stages_left
from keima.config.load import apply_overrides, error_at_setting, flatten, load_settings, read_given_settings
from keima.config.own_modules import is_own, path_of
from keima.config.schema import Settings
from keima.config.sections.game import BoardStep
from keima.config.sections.network import GROWING_TYPES, NetworkSettings
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import TrainingSettings, WindowSettings
from keima.games import GAMES, Game, load_game
from keima.games.authoring.check import GameReport, examine_in_process
from keima.learning.speed import count_learner_threads, measure_learning_speed
from keima.networks.inference.evaluator import Evaluator, count_gpus, use_threads
from keima.networks.network import build_network
from keima.self_play.tuning import measure_self_play_speed

EXAMINING_SECONDS = 180.0  # of processor time for random games, at most, as keima check-game
PARALLEL_GAMES = 64
WORKER_SHARE = 0.6  # of this machine's time, where it both plays and learns; the learner has the rest
GPU_AS_CORES = 40  # cores that play as fast as a GPU; an H200 has 80 of a Xeon with AMX (docs/results/speed.md)
SUDDEN = (
    0.02  # share of positions in which a move ends the game: 0.3 in Connect Four, 0.09 in Lines of Action, 0 in Othello
)
# Opening moves that are drawn from the policy, in games that may end at any move: with 10 of 21 plies instead of 2,
# Connect Four is +49 Elo (+5 to +94) stronger after 13 minutes (docs/results/learning_techniques.md).
MOST_OPENING_MOVES = 10
# Legal moves up to which the rules alone look one ply ahead. Gomoku on 9 x 9 has 54: with a third of the games in the
# same 24 minutes, it is +158 Elo (+101 to +224) stronger, and +223 if it also looks one ply ahead in matches.
MOST_MOVES_AHEAD = 60
# A run on a board of so many points begins on a smaller one, for this share of its time: after 20 minutes, Hex on 11 x
# 11 is 449 Elo stronger for it, and Go on 9 x 9 123 (docs/decisions/growing.md).
LARGE_BOARD, SMALLER_SHARE = 81, 0.25
# Mean number of legal moves above which PUCT cannot try them all: Gumbel's search improves with fewer simulations
# (Danihelka et al., "Policy improvement by planning with Gumbel", ICLR 2022). 9x9 Go has 33, 11x11 Hex 67.
WIDE = 60
MOST_MOVES_DEEPER = 50  # up to which matches look one ply further
SHORT = 12  # mean plies of a game, up to which the smallest network will do, and every move is searched fully
SIZES = (  # (blocks, channels) of networks, ascending
    (2, 16), (3, 32), (4, 32), (4, 48), (5, 64), (6, 80), (8, 96), (8, 128), (10, 160), (15, 192), (20, 256),
)  # fmt: skip
REFERENCE = (4, 32)  # the network with which a machine is measured
# The evaluations of one point per second with that network on two such cores, and the minutes, for which it is right.
REFERENCE_SPEED, REFERENCE_MINUTES = 1.1e6, 28.0
# The best number of parameters grows with compute to this power (Neumann and Gros, "Scaling Laws for a Multi-Agent
# Reinforcement Learning Model", ICLR 2023).
SIZE_EXPONENT = 0.62
# As many simulations as leave about so many games: Connect Four had 78,600 in 11 minutes with 64 simulations and about
# 130,000 in 28 with 128, 9x9 Go 61,622 with 64.
ENOUGH_GAMES = 60_000
# In games that no single move ends, up to this many simulations are worth it from fewer games on: Othello with 96 and
# 32 simulations and half the games of 48 and 12 was +102 Elo stronger after 6,450 games, and -301 after 4,173.
FEW_GAMES, FEW_GAMES_SIMULATIONS = 8_000, 96
FULL_SHARE, CHEAP_SHARE = 0.25, 0.25  # of moves with a full search; of its simulations, those of the other moves
FEWEST_SIMULATIONS, MOST_SIMULATIONS = 48, 128
# Where more games are played than the learner can learn from, so that workers would have to wait for it: up to as many
# simulations as AlphaZero had (Silver et al. 2018), and if that is not enough, fewer samples of a position.
MOST_SIMULATIONS_OF_MANY, FEWEST_SAMPLES = 800, 1.0
# So many times more may be guessed from random games than is played: 4.7 in Hex 11x11, 0.4 in Connect Four. Only beyond
# that the learner is too slow.
GUESS_ERROR = 5.0
FEW_SIMULATIONS = 32  # where every move is searched fully
# Games for each that would be played if every simulation needed an evaluation and games were as long as random ones:
# 2.7 in that run of Connect Four, 1.9 in 9x9 Go.
GAMES_SHARE = 2.0
ITERATIONS = 60  # of a run
FEWEST_GAMES_AHEAD = 100  # of each worker, so that no place for a game is empty
# The most positions of an optimizer step, and about how many steps a run takes: a short one learns more by many small
# steps, but a position costs twice the time in batches of 32 as in batches of 128. With the window below, Othello is 54
# Elo stronger with 5,400 steps of 64 positions than with 2,500 of 128; 9x9 Go is as strong with 6,700 steps of 32 as
# with 1,700 of 128; Connect Four is 71 Elo stronger with 10,000 steps of 128 than with 30,000 of 32
# (docs/results/learning_techniques.md#size-of-a-batch).
MOST_BATCH, STEPS = 256, 10_000
# The window grows so that the last step draws from about a sixth of all positions. With a third instead of a fifth,
# runs of Go, Hex and Othello are 38 to 230 Elo weaker after 8 to 10 minutes, and as strong after 21; with three
# quarters, 99 to 531: what their weaker networks have played holds them back. Connect Four, whose games are short,
# overfits so few and is 46 Elo weaker with 0.65 (docs/results/learning_techniques.md#size-of-the-window).
WINDOW_GROWTH, WINDOW_GROWTH_OF_SHORT_GAMES = 0.65, 0.9
FIRST_WINDOW, LEAST_FIRST_WINDOW, MOST_FIRST_WINDOW = 1 / 150, 1_000, 10_000  # a share of all positions, within bounds
FEW_PLIES = 30  # mean plies of a game in which it is short: Connect Four has 21, Othello on 6 x 6 has 32
SAMPLES_PER_POSITION = TrainingSettings().samples_per_position
FEWEST_EVALUATIONS, MOST_EVALUATIONS = 4, 12  # of a run; 12: a first strength is known after a tenth of the run
EVALUATION_SHARE = 0.05  # of the compute of self-play, for rating games
FEWEST_RATING_GAMES, ENOUGH_RATING_GAMES, MOST_RATING_GAMES = 20, 40, 1000  # of an evaluation
# Plies of self-play until a network plays sensibly, per point of the board and square root of the mean number of legal
# moves: within a factor of 1.7 of what tic-tac-toe, Connect Four, and Go on 7 x 7 and 9 x 9 took (docs/results).
PLIES_PER_POINT = 1200
SETTINGS_OF_OPTIMIZER = ("training.optimizer", "training.learning_rate", "training.weight_decay")
Sections = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Players:
    """What plays the games of a run: cores, and GPUs, which count as many cores."""

    cores: int
    gpus: int = 0
    machines: int = 0  # other ones, which only play; 0: this one, which learns as well

    @property
    def whole_cores(self) -> float:
        """How many cores would play as fast that do nothing else."""
        if self.machines:
            return self.cores + self.gpus * GPU_AS_CORES
        return (self.gpus * GPU_AS_CORES or self.cores) * WORKER_SHARE  # where GPUs play, the cores serve them


def find_players_here(settings: Settings | None = None) -> Players:
    """Return what plays on this machine, as far as the settings leave it to play."""
    device, own, workers = "auto", "auto", None
    if settings:
        device, own, workers = settings.training.device, settings.self_play.device, settings.self_play.workers
    gpus = 0 if "cpu" in (device, own) else min(count_gpus(), 1) if ":" in device else count_gpus()
    cores = count_usable_cores()
    return Players(cores=min(cores, workers) if isinstance(workers, int) and not gpus else cores, gpus=gpus)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Chosen settings and what to expect of them on the machines that play."""

    settings: Sections  # sections of a config, without run and game
    minutes: float  # of the run that they are for
    games_per_second: float
    games: int  # until a network plays sensibly
    players: Players
    learning_speed: float = math.inf  # positions per second that can be learned while games are played
    is_learner_slow: bool = False  # so that there are more simulations, or fewer samples of a position

    @property
    def hours(self) -> float:
        """The estimated hours until a network plays sensibly."""
        return self.games / self.games_per_second / 3600


def propose_settings(
    game: Game,
    report: GameReport,
    *,
    minutes: float | None = None,
    given: Mapping[str, Any] | None = None,
    players: Players | None = None,
    speeds: "CoreSpeeds | None" = None,
) -> Proposal:
    """Return settings for a run of so many minutes; a core of this machine is measured for some seconds.

    Args:
        game: the game.
        report: what random games have shown.
        minutes: of the run; None: as long as a network probably takes to play sensibly.
        given: sections with the settings that are given already, which the others are to fit.
        players: what plays; None: this machine.
        speeds: of a core, as far as they have been measured.
    """
    given, players, speeds = given or {}, players or find_players_here(), speeds or CoreSpeeds(game)
    fixed_search, fixed_network = given.get("search", {}), given.get("network", {})
    fewest = max(FEWEST_SIMULATIONS, fixed_search.get("cheap_simulations", 1))
    search = search_settings(game, report, fixed_search.get("num_simulations", fewest), given=fixed_search)
    speed = players.whole_cores * speeds.measure(search, REFERENCE)
    games = round(PLIES_PER_POINT * points_of(game) * report.branching**0.5 / report.mean_plies)
    if minutes is None:
        seconds = games * evaluations_per_game(search, report) / speed
        minutes = max(5.0, math.ceil(seconds / 300) * 5.0)
    blocks, channels = choose_size(game, report, speed, minutes)
    blocks, channels = fixed_network.get("blocks", blocks), fixed_network.get("channels", channels)
    size = make_room_to_grow((blocks, channels), fixed_network)
    evaluations = speed if size == REFERENCE else players.whole_cores * speeds.measure(search, size)
    simulations = choose_simulations(report, evaluations * minutes * 60, given=fixed_search)
    simulations = max(simulations, fixed_search.get("cheap_simulations", 1))
    network = network_settings(game, size, type=fixed_network.get("type", "resnet"))

    def propose(simulations: int, training: Mapping[str, Any]) -> Proposal:
        search = search_settings(game, report, fixed_search.get("num_simulations", simulations), given=fixed_search)
        games_per_second = evaluations / evaluations_per_game(search, report)
        learning = learning_settings(game, report, search, games=games_per_second * minutes * 60, fixed=training)
        return Proposal(
            settings={"network": network, "search": search, **learning},
            minutes=minutes,
            games_per_second=games_per_second,
            games=games,
            players=players,
        )

    fixed = given.get("training", {})
    proposal = propose(simulations, fixed)
    training, needed = {**proposal.settings["training"], **fixed}, samples_per_second(proposal, report)
    batch = training["batch_size"]
    if steps := training["steps_per_run"]:
        batch = choose_batch_size(needed * minutes * 60, steps=steps, most=batch)
    speed = speeds.measure_learning({**network, **fixed_network}, {**training, "batch_size": batch}, players)
    most = GUESS_ERROR * speed
    if needed > most:
        many = max(simulations, min(MOST_SIMULATIONS_OF_MANY, math.ceil(simulations * needed / most / 8) * 8))
        fixed = {"batch_size": batch, **fixed}  # of which it is so fast
        proposal = propose(many, fixed)
        still = samples_per_second(proposal, report)
        if still > most and "samples_per_position" not in fixed:
            fewer = max(FEWEST_SAMPLES, SAMPLES_PER_POSITION * most / still)
            proposal = propose(many, {**fixed, "samples_per_position": math.floor(10 * fewer) / 10})
    return replace(proposal, learning_speed=speed, is_learner_slow=needed > most)


def samples_per_second(proposal: Proposal, report: GameReport) -> float:
    """Return how many positions per second are to be learned, with repetition."""
    share = proposal.settings["search"]["full_search_probability"]
    repeated = proposal.settings["training"]["samples_per_position"]
    return float(proposal.games_per_second * report.mean_plies * share * repeated)


class CoreSpeeds:
    """How fast this machine plays a game and learns, by the size of the network; each is measured once."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._measured: dict[tuple[int, int], float] = {}
        self._learning: dict[tuple[str, int, int], float] = {}

    def measure(self, search: Mapping[str, Any], size: tuple[int, int]) -> float:
        """Return evaluations per second of self-play on one core, with an untrained network."""
        if size not in self._measured:
            use_threads(1)
            network = build_network(self._game, **network_settings(self._game, size))
            evaluator = Evaluator(network, self._game, device="cpu", max_batch=PARALLEL_GAMES)
            self._measured[size] = measure_self_play_speed(
                self._game, evaluator, SearchSettings(**search), PARALLEL_GAMES
            )
        return self._measured[size]

    def measure_learning(self, network: Mapping[str, Any], training: Mapping[str, Any], players: Players) -> float:
        """Return the positions per second that the learner can take while games are played; infinite where that is
        unknown: several processes learn, the network is the user's own, or the device is not here. It is also infinite
        where nothing is learned meanwhile.
        """
        is_unknown = training.get("learner", {}).get("ranks", 1) > 1 or {"module", "options"} & network.keys()
        if is_unknown or is_own(network.get("type", "")) or not training.get("asynchronous", True):
            return math.inf
        cores, batch = count_usable_cores(), training["batch_size"]
        threads = count_learner_threads(
            training.get("threads", "auto"), cores=cores, is_spread=players.machines > 0, asynchronous=True
        )
        shape = NetworkSettings(**network)
        key = (shape.model_dump_json(), batch, threads)
        if key not in self._learning:
            use_threads(threads)
            names = ("device", "optimizer", "mixed_precision")
            options = {name: training[name] for name in names if name in training}
            settings = TrainingSettings(batch_size=batch, window=WindowSettings(min_positions=batch), **options)
            try:
                self._learning[key] = measure_learning_speed(self._game, shape, settings)
            except ValueError:  # the settings are for a machine with another device
                self._learning[key] = math.inf
        left = (1 - WORKER_SHARE) * (1 if players.gpus else cores / threads)
        return self._learning[key] * (1.0 if players.machines else min(1.0, left))


def evaluations_per_game(search: Mapping[str, Any], report: GameReport) -> float:
    """Return the mean number of evaluations of a game."""
    return report.mean_moves * simulations_per_move(search) / GAMES_SHARE


def simulations_per_move(search: Mapping[str, Any]) -> float:
    """Return the mean number of simulations; a share of the moves is searched fully, the others cheaply."""
    full = search["full_search_probability"]
    return float(full * search["num_simulations"] + (1 - full) * search["cheap_simulations"])


def points_of(game: Game) -> int:
    """Return the number of points of the board."""
    return game.height * game.width


def choose_size(game: Game, report: GameReport, evaluations_per_second: float, minutes: float) -> tuple[int, int]:
    """Return the blocks and channels of the network, for so many evaluations per second of the reference network.

    blocks * channels^2, to which parameters and time per point are proportional, follows
    4 * 32^2 * (compute / reference)^0.62.
    """
    if report.mean_plies <= SHORT:
        return SIZES[0]
    compute = evaluations_per_second * points_of(game) * minutes / (REFERENCE_SPEED * REFERENCE_MINUTES)
    best = REFERENCE[0] * REFERENCE[1] ** 2 * compute**SIZE_EXPONENT
    return min(SIZES[1:], key=lambda size: abs(math.log(size[0] * size[1] ** 2 / best)))


def make_room_to_grow(size: tuple[int, int], given: Mapping[str, Any]) -> tuple[int, int]:
    """Return blocks and channels that are smaller than those to which the ``given`` network is to grow, if it is."""
    if not given.get("growth"):
        return size
    first = NetworkSettings(growth=given["growth"], blocks=1, channels=4).sizes[1]
    blocks, channels = min(size[0], first.blocks), min(size[1], first.channels)
    if (blocks, channels) == (first.blocks, first.channels):
        if "channels" in given:
            blocks = max(1, blocks - 1)
        else:
            channels = max(4, channels // 2)
    return blocks, channels


def network_settings(game: Game, size: tuple[int, int], *, type: str = "resnet") -> dict[str, Any]:
    """Return the network; auxiliary targets where the game has them (Wu, "Accelerating Self-Play Learning in Go"), and
    the type of network has heads for them.
    """
    blocks, channels = size
    settings: dict[str, Any] = {"blocks": blocks, "channels": channels, "global_pooling": size != SIZES[0]}
    if game.final_score is not None and type in GROWING_TYPES:
        settings |= {"predict_ownership": True, "predict_score": True}
    return settings


def choose_simulations(report: GameReport, evaluations: float, *, given: Mapping[str, Any] | None = None) -> int:
    """Return the simulations of a full search, for so many evaluations in the run and a search that is partly given."""
    given = given or {}
    if searches_all_fully(report, given):
        return FEW_SIMULATIONS
    share = given.get("full_search_probability", FULL_SHARE)
    per_game = report.mean_moves * (share + (1 - share) * CHEAP_SHARE) / GAMES_SHARE
    many, few = (evaluations / (games * per_game) for games in (ENOUGH_GAMES, FEW_GAMES))
    full = many if report.sudden >= SUDDEN else max(many, min(few, FEW_GAMES_SIMULATIONS))
    return max(FEWEST_SIMULATIONS, min(MOST_SIMULATIONS, round(full / 8) * 8))


def search_settings(
    game: Game, report: GameReport, simulations: int, *, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the search with so many simulations for a move that is learned; what is ``given`` wins."""
    given = given or {}
    settings: dict[str, Any] = {
        "num_simulations": simulations,
        "cheap_simulations": max(1, int(simulations * CHEAP_SHARE)),
        "full_search_probability": 1.0 if searches_all_fully(report, given) else FULL_SHARE,
        "dirichlet_alpha": float(f"{10 / report.branching:.2g}"),  # Silver et al. 2018
        "temperature_halflife": float(max(1, round(min(max(game.height, game.width), report.mean_plies / 3)))),
        "opening_random_moves": choose_opening_moves(game, report),
    }
    if searches_by_gumbel(report, given):
        settings["algorithm"] = "gumbel"
    if game.num_players == 2:
        plies = lookahead_plies(game, report)
        further = plies + 1 if plies and report.branching <= MOST_MOVES_DEEPER else plies
        settings |= {"lookahead_plies": plies, "match_lookahead_plies": further}
        settings |= {"match_policy_temperature": 1.36, "match_early_stop": True}
    if game.num_players == 2 and report.mean_plies > points_of(game) and not is_sudden(game, report):
        settings["resignation"] = {
            "enabled": True, "threshold": 0.97, "consecutive": 4, "no_resign_fraction": 0.2,
        }  # fmt: skip
    apply_overrides(settings, dict(flatten(given)))
    return settings


def searches_all_fully(report: GameReport, given: Mapping[str, Any]) -> bool:
    """Return whether every move is searched fully: in games of few moves, and by Gumbel's search."""
    return report.mean_plies <= SHORT or searches_by_gumbel(report, given)


def searches_by_gumbel(report: GameReport, given: Mapping[str, Any]) -> bool:
    """Return whether the search is Gumbel's, as there are too many moves to try each, or as it is given."""
    return given.get("algorithm", "gumbel" if report.branching > WIDE else "puct") == "gumbel"


def choose_opening_moves(game: Game, report: GameReport) -> float:
    """Return the mean number of opening moves that are drawn from the policy alone."""
    if is_sudden(game, report) and report.mean_plies > SHORT:
        return float(min(MOST_OPENING_MOVES, round(report.mean_plies / 2)))
    return float(max(1, min(4, round(report.mean_plies / 10))))


def is_sudden(game: Game, report: GameReport) -> bool:
    """Return whether one move often ends a game that could go on; by two passes it does so in Go, which decides
    nothing.
    """
    return report.sudden >= SUDDEN and not game.won_by_area


def lookahead_plies(game: Game, report: GameReport) -> int:
    """Return how far the rules alone are searched: where one move may end a game, and few moves are legal."""
    if game.num_outcomes or not is_sudden(game, report):
        return 0
    return 2 if report.branching <= 10 else 1 if report.branching <= MOST_MOVES_AHEAD else 0


def learning_settings(
    game: Game, report: GameReport, search: Mapping[str, Any], *, games: float, fixed: Mapping[str, Any]
) -> Sections:
    """Return the sections that depend on the run's games; ``fixed`` are given settings of training."""
    per_iteration = fixed.get("games_per_iteration", max(50, min(2000, round(games / ITERATIONS / 50) * 50)))
    learned = games * report.mean_plies * search["full_search_probability"]  # positions of the run
    window = fixed.get("window", {})
    repeated = fixed.get("samples_per_position", SAMPLES_PER_POSITION)
    samples = learned * repeated
    is_batch_given = "batch_size" in fixed or not fixed.get("asynchronous", True)
    batch = fixed.get("batch_size", choose_batch_size(samples, steps=STEPS, most=MOST_BATCH))
    least = max(LEAST_FIRST_WINDOW, batch, min(MOST_FIRST_WINDOW, float(f"{learned * FIRST_WINDOW:.1g}")))
    least = int(window.get("min_positions", min(least, window.get("max_positions", least))))
    competitive = game.num_players > 1
    evaluations, rating_games = plan_evaluations(games, search)
    is_muon = competitive and fixed.get("optimizer", "muon") == "muon"
    optimizer = {"optimizer": "muon", "learning_rate": 4e-3, "weight_decay": 0.1} if is_muon else {}
    return {
        "self_play": {
            "games_per_worker": max(FEWEST_GAMES_AHEAD, per_iteration // 4),
            "cache_positions": 200_000,
        },
        "training": {
            "batch_size": min(batch if is_batch_given else MOST_BATCH, least),
            "steps_per_run": None if is_batch_given else STEPS,
            "learning_rate": 2e-3,
            **optimizer,
            "learning_rate_schedule": "cosine",
            "ema_decay": 0.98 if report.mean_plies <= SHORT else 0.995,
            "td_lambda": 0.9 if competitive and not game.won_by_area else 1.0,
            "samples_per_position": repeated,
            "games_per_iteration": per_iteration,
            "steps_per_model": 200 if fixed.get("asynchronous", True) else None,
            "window": {
                "min_positions": least,
                "max_positions": max(1_000_000, least),
                "growth_exponent": WINDOW_GROWTH if report.mean_plies > FEW_PLIES else WINDOW_GROWTH_OF_SHORT_GAMES,
            },
        },
        "evaluation": {
            "every": max(1, round(games / per_iteration / evaluations)),
            "num_simulations": search["num_simulations"],
            "rating_games": rating_games if competitive else 0,
            "score_games": 0 if competitive else 20,
        },
    }


def plan_evaluations(games: float, search: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of evaluations, and the rating games of each, which together take a share of the compute of so
    many games: fewer evaluations where each would have too few games.

    A game is as long as one of self-play, and all of its moves are searched fully.
    """
    cost = search["num_simulations"] / simulations_per_move(search)  # of a rating game, in games of self-play
    affordable = EVALUATION_SHARE * games / cost
    evaluations = max(FEWEST_EVALUATIONS, min(MOST_EVALUATIONS, int(affordable / ENOUGH_RATING_GAMES)))
    each = round(affordable / evaluations / 10) * 10
    return evaluations, max(FEWEST_RATING_GAMES, min(MOST_RATING_GAMES, each))


def list_reasons(game: Game, report: GameReport, proposal: Proposal, given: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the proposed settings are what they are, in at most ten lines."""
    network, search = proposal.settings["network"], proposal.settings["search"]
    evaluations = proposal.games_per_second * evaluations_per_game(search, report)
    games = proposal.games_per_second * proposal.minutes * 60
    full, cheap, share = (search[key] for key in ("num_simulations", "cheap_simulations", "full_search_probability"))
    yield (
        f"game: {points_of(game)} points, {report.branching:.1f} legal moves and {report.mean_plies:.0f} plies on "
        f"average{f', {report.draws:.0%} draws in random games' if game.num_players == 2 else ''}"
    )
    most = proposal.learning_speed
    learns = f"; up to {most:,.0f} positions/s are learned" if math.isfinite(most) else ""
    yield f"{_players_text(proposal.players)}: {evaluations:,.0f} evaluations/s, so about {games:,.0f} games{learns}"
    fixed = given.get("network", {})
    is_given = {"blocks", "channels"} & fixed.keys()
    why = "as given" if is_given else "as large as pays off in this time; more time or machines allow a larger one"
    if "module" not in fixed and not is_own(fixed.get("type", "")):
        yield f"network {network['blocks']}x{network['channels']}: {why}"
    cheaply = "" if share == 1 else f"; {1 - share:.0%} of the moves have {cheap}, to finish more games"
    training = proposal.settings["training"]
    batch, steps, repeated = (training[key] for key in ("batch_size", "steps_per_run", "samples_per_position"))
    searches = given.get("search", {})
    enough = f"{ENOUGH_GAMES:,}" if report.sudden >= SUDDEN else f"{FEW_GAMES:,} to {ENOUGH_GAMES:,}"
    why = f"as many as leave {enough} games, within bounds"
    if "num_simulations" in searches:
        why = "as given"
    elif proposal.is_learner_slow:
        why = "as many as pay off" if repeated < SAMPLES_PER_POSITION else "so many that the learner can take all games"
    elif searches_by_gumbel(report, searches):
        why = "of Gumbel's search, which needs few"
    elif searches_all_fully(report, searches):
        why = "for every move"
    yield f"{full} simulations: {why}{cheaply}"
    if search.get("lookahead_plies"):
        yield f"lookahead_plies {search['lookahead_plies']}: in {report.sudden:.0%} of positions a move ends the game"
    if search.get("resignation", {}).get("enabled"):
        yield "resignation: games are long, and no single move decides them"
    run = given.get("run", {})
    why = "" if run.get("minutes") else ", until a network probably plays sensibly; --hours gives another time"
    why = ", by about as long as its iterations take" if run.get("iterations") and not run.get("minutes") else why
    if repeated < SAMPLES_PER_POSITION and "samples_per_position" not in given.get("training", {}):
        yield f"each position is learned {repeated:g} times, not {SAMPLES_PER_POSITION:g}: the learner is too slow"
    batches = f"about {steps:,} steps of {FEWEST_POSITIONS} to {batch}" if steps else f"batches of {batch}"
    yield f"{batches} positions, learning rate and window: over {proposal.minutes:g} minutes{why}"


def _players_text(players: Players) -> str:
    several = "s" * (players.gpus > 1)
    gpus = f"{players.gpus} GPU{several} (as fast as {GPU_AS_CORES} cores each)" * bool(players.gpus)
    if not players.machines:
        return f"this machine, which also learns{gpus and f', with {gpus}'}"
    cores = f"{players.cores:,} cores" * bool(players.cores)
    where = "one other machine" if players.machines == 1 else f"{players.machines} other machines"
    return f"{' and '.join(filter(None, (cores, gpus)))} of {where}, if a core is as fast as one here"


def proposed_config(game: str, options: Mapping[str, Any], proposal: Proposal) -> str:
    """Return the proposed settings as a config, for a shipped game by its name, or for a user's file."""
    source = {"name": game} if game in GAMES else {"module": game}
    settings = {
        "run": {"name": Path(game).stem, "minutes": proposal.minutes},
        "game": {**source, "options": dict(options)},
        **proposal.settings,
    }
    return yaml.safe_dump(settings, sort_keys=False)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What settings are chosen from, and the choice."""

    settings: Settings  # with values that only fit where the choice does not say otherwise
    given: Mapping[str, Any]  # settings that are given, by dotted key
    sections: Sections  # the same as sections
    game: Game
    report: GameReport
    players: Players
    proposal: Proposal


def choose_settings(
    path: Path,
    overrides: Mapping[str, Any],
    *,
    say: Callable[[str], None],
    find_players: Callable[[Settings], Players | None] | None = None,
) -> Choice:
    """Choose the settings that neither a file nor ``overrides`` give; see ``load_run_settings``."""
    given = read_given_settings(path) | dict(overrides) | {"run.auto": False}
    settings = load_settings(path, overrides={**_placeholders(given), **overrides})
    name, options = settings.game.name, settings.game.options
    say(f"playing random games of {name}, and measuring how fast it is played here")
    report = examine_in_process(str(path_of(name)) if is_own(name) else name, options, seconds=EXAMINING_SECONDS)
    if report.broken:
        raise error_at_setting(path, ("game",), report.broken)
    sections: Sections = {}
    apply_overrides(sections, {key: value for key, value in given.items() if value is not None or "." in key})
    game = load_game(name, **options)
    players = find_players(settings) if find_players and settings.distributed.enabled else None
    players = players or find_players_here(settings)
    return Choice(
        settings=settings,
        given=given,
        sections=sections,
        game=game,
        report=report,
        players=players,
        proposal=propose_settings(game, report, minutes=given.get("run.minutes"), given=sections, players=players),
    )


def load_run_settings(
    path: Path,
    overrides: Mapping[str, Any],
    *,
    run_dir: Path | None,
    say: Callable[[str], None],
    resume: bool = False,
    several_boards: bool = True,
    find_players: Callable[[Settings], Players | None] | None = None,
) -> Settings:
    """Return the settings in a file; with ``run.auto``, those that neither it nor ``overrides`` give are chosen.

    They are chosen when a run begins. A run that continues has those that it began with.

    Args:
        path: the file.
        overrides: values that replace those of the file, by dotted key.
        run_dir: the run's folder; None: the one that the settings name.
        say: tells what is measured, and the choice with its reasons, line by line.
        resume: whether the folder must hold a run, so that nothing is measured where it does not.
        several_boards: whether the run may begin on a smaller board; the ranks of torchrun cannot.
        find_players: returns what plays, with ``distributed.enabled``; where it returns None, this machine counts.

    Raises:
        GameDoesNotAnswer: the game does not even run.
        ConfigError: a setting is invalid, or the game is not what it must be.
        ValueError: there is no run to resume.
    """
    given = read_given_settings(path) | dict(overrides)
    if not given.get("run.auto"):
        return load_settings(path, overrides=overrides)
    settings = load_settings(path, overrides={**_placeholders(given), **overrides})
    run_dir = run_dir or settings.run.folder
    if resume:
        check_run_folder(run_dir, resume=True)
    begun = run_dir / "config.yaml"
    if begun.exists():
        fixed, given = ("game.", "network."), given | {"run.auto": False}
        return load_settings(begun, overrides={key: given[key] for key in given if not key.startswith(fixed)})
    choice = choose_settings(path, overrides, say=say, find_players=find_players)
    proposal = choice.proposal
    for line in list_reasons(choice.game, choice.report, proposal, choice.sections):
        say(line)
    needed = proposal.hours * 60
    if proposal.minutes < needed and not given.get("run.iterations"):
        say(
            f"{proposal.minutes:g} minutes may be too short: by a rough estimate, this game needs about "
            f"{format_duration(needed * 60)} here until a network plays sensibly"
        )
    chosen = {key: value for key, value in flatten(proposal.settings) if key not in choice.given}
    if is_own(settings.network.type):  # it has options of its own, and perhaps no matrices for Muon
        chosen = {
            key: value
            for key, value in chosen.items()
            if not key.startswith("network.") and key not in SETTINGS_OF_OPTIMIZER
        }
    is_limited = given.get("run.minutes") is not None or (
        given.get("run.iterations") is not None and not settings.game.smaller  # whose shares are of a time
    )
    limit = {} if is_limited else {"run.minutes": proposal.minutes}
    overrides = {**limit, **chosen, **overrides, "run.auto": False}
    settings, board = load_settings(path, overrides=overrides), choose_smaller_board(choice.game)
    if board and several_boards and may_change_boards(settings) and "game.smaller" not in given:
        with suppress(ValueError):  # the game has no such board, one network cannot learn both, or there is no time
            changes: dict[str, Any] = {"game.smaller": [board]}
            if "evaluation.every" in chosen:  # as many evaluations in the rest of the time
                changes["evaluation.every"] = max(1, round(settings.evaluation.every * (1 - SMALLER_SHARE)))
            in_stages = load_settings(path, overrides={**overrides, **changes})
            check_stages(stages_left(run_dir, in_stages))
            settings, name = in_stages, in_stages.game.boards[0].name
            say(
                f"{name} for the first {SMALLER_SHARE:.0%} of the time: a small board teaches the most at first. "
                "Strength is measured after that; game.smaller: [] begins on the whole board"
            )
    return settings


def may_change_boards(settings: Settings) -> bool:
    """Return whether a run may go on to another board by itself. It does so after a share of its time, and with other
    workers: those of Slurm and Ray would wait for machines again, and those that joined by a link would be lost.
    """
    machines = settings.distributed
    is_fixed = machines.enabled and (machines.crowd or machines.slurm or machines.ray)
    return settings.run.iterations is None and not is_fixed


def choose_smaller_board(game: Game) -> BoardStep | None:
    """Return a smaller board, on which a run on a large one of two players begins, if its size is the option ``size``;
    an even size stays even, which some games need.
    """
    size = game.options.get("size")
    if not isinstance(size, int) or not size == game.height == game.width:
        return None
    if game.num_players != 2 or points_of(game) < LARGE_BOARD:
        return None
    return f"size={size - 2 * math.ceil(size / 6 - 0.5)}@{SMALLER_SHARE:g}"  # the nearest to two thirds of the size


def _placeholders(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for settings that are not given yet, with which all valid given ones are valid together."""
    most = given.get("training.window.max_positions", 2**20)
    free = {
        "search.num_simulations": 100_000,
        "search.cheap_simulations": 1,
        "training.window.min_positions": min(most, 2**16) if isinstance(most, int) else 2**16,
        "training.window.max_positions": 2**62,
        "run.minutes": 1.0,
    }
    if given.get("network.growth"):  # from whatever it begins with
        free |= {"network.blocks": 1, "network.channels": 4}
    return {key: value for key, value in free.items() if key not in given}
