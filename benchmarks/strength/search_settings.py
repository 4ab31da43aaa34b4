"""Measure what search settings are worth: one network plays against itself with two settings of the search.

    python benchmarks/strength/search_settings.py models/go9.safetensors --try search.fpu_reduction=0.3
    python benchmarks/strength/search_settings.py runs/chess --pairs 200 --json chess.json \\
        --try search.c_puct=1.4,search.c_puct_log_base=500 --try search.c_puct=0.9
    python benchmarks/strength/search_settings.py models/go9.safetensors --try search.match_score_utility=0 \\
        --against gnugo:10 --pairs 20

Each --try plays --pairs pairs of games against the settings as they are: those of the network's run, or the defaults
for a model's file, with what --base changes. Two games start from each opening of --opening-plies random moves, with
colours swapped. Both sides have the same *time*: the seconds of a move are measured before the games and in them, and
the tried settings get as many simulations as take the time of --simulations of the others. --equal simulations gives
both the same number instead. A round is --at-once pairs in each process; after each a line has the Elo difference with
its 95 % interval over the pairs, and --json is written.

With --against the settings as they are and each --try play an opponent of scripts/benchmark.py instead, all from the
same openings and with --simulations. In games won by area, such as Go, lines also have the mean margin in points of won
and of lost games.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.strength.target_quality import settings_in
from keima.base.files import write_atomically
from keima.base.intervals import mean_margin, wilson
from keima.base.random import seed_stream
from keima.config.flags import HIGHEST_SEED, processes, whole
from keima.config.load import override
from keima.config.sections.search import SearchSettings
from keima.data.imports.imported_games import last_state
from keima.evaluation.elo import elo_difference
from keima.evaluation.match import opening_moves, states_after
from keima.evaluation.match_worker import search_for_strength
from keima.games import Game
from keima.networks.inference.evaluator import pick_device, use_threads
from keima.play.arena.ladder import chosen, go_rungs, is_baseline, ladder
from keima.play.arena.match_benchmark import Entrant, Match, play_pairs
from keima.play.arena.players import NetworkSpec
from keima.play.network_loader import UNKNOWN_RUN, PlayableNetwork, network_at

REHEARSED = 32  # positions whose search is timed before the games
REHEARSED_PLIES = 10
REHEARSALS = 3


@dataclass
class Outcome:
    """The games of tried settings so far.

    Args:
        name: of the settings.
        pair_scores: of each pair, the mean score.
        leads: in each game, the points by which these settings won.
        seconds: of a move by these settings and by the opponent, round by round.
        simulations: of these settings, round by round.
    """

    name: str
    pair_scores: list[float] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)
    plies: list[float] = field(default_factory=list)
    seconds: list[tuple[float, float]] = field(default_factory=list)
    simulations: list[int] = field(default_factory=list)

    def add(self, game: Game, match: Match, simulations: int) -> None:
        """Count a round."""
        self.pair_scores += match.scores.reshape(-1, 2).mean(1).tolist()
        self.leads += leads_of_first(game, match)
        self.plies.append(match.plies)
        self.seconds.append(match.move_seconds)
        self.simulations.append(simulations)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form."""
        score, margin = score_and_margin(np.array(self.pair_scores))
        differences = {
            "elo": elo_difference(score),
            "low": elo_difference(score - margin),
            "high": elo_difference(score + margin),
        }
        return {
            **vars(self),
            "score": score,
            "score_margin": margin,
            **{key: each if abs(each) < float("inf") else None for key, each in differences.items()},
            "time_ratio": self.time_ratio(),
            "won_by": mean_of([lead for lead in self.leads if lead > 0]),
            "lost_by": mean_of([-lead for lead in self.leads if lead < 0]),
        }

    def time_ratio(self) -> float:
        """The time of a move, as a multiple of the opponent's."""
        mine, theirs = np.mean(self.seconds, 0).tolist()
        return mine / max(theirs, 1e-9)

    def line(self) -> str:
        """A row of the table."""
        said = self.as_dict()
        elo, low, high = (said[key] for key in ("elo", "low", "high"))
        shown = ["" if each is None else f"{each:+.0f}" for each in (elo, low, high)]
        games = 2 * len(self.pair_scores)
        low_score, high_score = wilson(said["score"] * games, games)
        margins = " | ".join("" if each is None else f"{each:.1f}" for each in (said["won_by"], said["lost_by"]))
        return (
            f"| {self.name} | {games} | {said['score']:.1%} ({low_score:.1%} to {high_score:.1%}) "
            f"| {shown[0]} ({shown[1]} to {shown[2]}) | {self.simulations[-1]} | {said['time_ratio']:.2f} "
            f"| {np.mean(self.plies):.0f} | {margins} |"
        )


HEADING = (
    "| settings | games | score | Elo by pairs | simulations | time of a move | plies | won by | lost by |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def score_and_margin(pair_scores: NDArray[np.float64]) -> tuple[float, float]:
    """The mean score of pairs, and half the width of its 95 % interval; 1 for a single pair."""
    margin = mean_margin(pair_scores)
    return float(pair_scores.mean()), 1.0 if margin is None else margin


def mean_of(values: Sequence[float]) -> float | None:
    """The mean, or None of nothing."""
    return statistics.fmean(values) if values else None


def leads_of_first(game: Game, match: Match) -> list[float]:
    """By how many points the first player won each game; empty unless the game is won by area."""
    if not game.won_by_area:
        return []
    opened = opening_moves(game, len(match.scores) // 2, match.opening_plies, match.seed).tolist()
    owned, leads = np.zeros(game.height * game.width, np.int32), list[float]()
    for number, moves in enumerate(match.games):
        lead = game.final_score(last_state(game, [*opened[number // 2], *moves]), owned) / 2
        leads.append(-lead if number % 2 else lead)
    return leads


def changed(search: SearchSettings, text: str) -> SearchSettings:
    """Search settings with the changes of KEY=VALUE,KEY=VALUE.

    Raises:
        ValueError: they are none, or not settings of the search.
    """
    document: dict[str, Any] = {"search": search.model_dump(mode="json")}
    for key, value in (settings_in(text) if text else {}).items():
        if not key.startswith("search."):
            raise ValueError(f"{key!r} is no setting of the search, such as search.c_puct")
        override(document, key.split("."), value)
    return SearchSettings.model_validate(document["search"])


def seconds_of_a_move(network: PlayableNetwork, specs: Sequence[NetworkSpec], *, seed: int, device: str) -> list[float]:
    """The seconds that each player takes for a position, measured in turns: of the processor, or of a GPU."""
    game, model = network.game, network.model
    states = states_after(game, opening_moves(game, REHEARSED, REHEARSED_PLIES, seed))
    clock = time.process_time if pick_device(device).type == "cpu" else time.perf_counter
    searches = [
        search_for_strength(game, model, spec.search, num_simulations=spec.num_simulations, device=device)
        for spec in specs
    ]
    taken: list[list[float]] = [[] for _ in specs]
    for _ in range(REHEARSALS + 1):
        for search, times in zip(searches, taken, strict=True):
            began = clock()
            search.find(states)
            times.append((clock() - began) / REHEARSED)
    return [statistics.median(times[1:]) for times in taken]  # the first call compiles


def rounds(pairs: int, at_once: int) -> Iterator[tuple[int, int]]:
    """The number and the pairs of each round."""
    for number, begun in enumerate(range(0, pairs, at_once)):
        yield number, min(at_once, pairs - begun)


def opponent_called(name: str, game: Game) -> Entrant:
    """An opponent of scripts/benchmark.py.

    Raises:
        ValueError: there is none of this name.
    """
    known = ladder(game, [name] if is_baseline(name) else [])
    engines = go_rungs(game, [name]) if game.name == "go" and name not in [rung.name for rung in known] else []
    return chosen([*known, *engines], [name], game.name)[0]


def main() -> None:
    """Play, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("network", type=Path, help="a model's file, or the folder of a run")
    add("--try", dest="tries", action="append", required=True, metavar="KEY=VALUE,...", help="settings to try")
    add("--base", default="", metavar="KEY=VALUE,...", help="changes of the settings of both sides")
    add("--against", metavar="NAME", help="an opponent, such as gnugo:10 or mcts:1000")
    add("--pairs", type=whole(), default=500, help="of games for each --try (default: %(default)s)")
    add("--simulations", type=whole(), default=200, help="a move (default: %(default)s)")
    add("--equal", choices=["time", "simulations"], default="time", help="what both sides have (default: %(default)s)")
    add("--opening-plies", type=whole(0), default=6, help="random moves per opening (default: %(default)s)")
    add("--at-once", type=whole(), default=16, help="pairs at a time in a process (default: %(default)s)")
    add("--processes", type=processes, default="auto", help="that play (default: auto, one per core)")
    add("--device", default="cpu", help="of the network: cpu, cuda or auto (default: %(default)s)")
    add("--seed", type=whole(0, HIGHEST_SEED), default=1, help="of the openings (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the results there after each round")
    arguments = parser.parse_args()
    use_threads(1)
    try:
        found = network_at(arguments.network)
        base = changed(SearchSettings() if found.search is UNKNOWN_RUN else found.search, arguments.base)
        tried = {text: changed(base, text) for text in arguments.tries}
        opponent = opponent_called(arguments.against, found.game) if arguments.against else None
        pick_device(arguments.device)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if found.game.num_players != 2:
        parser.error(f"{found.game.name} is no game for two")

    def player(search: SearchSettings, simulations: int) -> NetworkSpec:
        return NetworkSpec(
            model=found.path.resolve(), search=search, num_simulations=simulations, device=arguments.device
        )

    as_is = player(base, arguments.simulations)
    settings = {"as they are": base, **tried} if opponent else tried
    outcomes = {name: Outcome(name) for name in settings}
    simulations = dict.fromkeys(settings, arguments.simulations)
    if opponent is None and arguments.equal == "time":
        first, *others = seconds_of_a_move(
            found,
            [as_is, *(player(search, arguments.simulations) for search in settings.values())],
            seed=arguments.seed,
            device=arguments.device,
        )
        for name, seconds in zip(settings, others, strict=True):
            simulations[name] = max(1, round(arguments.simulations * first / seconds))
    print(HEADING, flush=True)
    for number, pairs in rounds(arguments.pairs, arguments.at_once * arguments.processes):
        for name, search in settings.items():
            match = play_pairs(
                found.game,
                Entrant(name=name, spec=player(search, simulations[name])),
                opponent or Entrant(name="as they are", spec=as_is),
                games=2 * pairs,
                opening_plies=arguments.opening_plies,
                seed=seed_stream(arguments.seed, "round", number),
                processes=arguments.processes,
            )
            outcomes[name].add(found.game, match, simulations[name])
            print(outcomes[name].line(), flush=True)
            if opponent is None and arguments.equal == "time":
                each = [mine / theirs for mine, theirs in outcomes[name].seconds]
                played = zip(each, outcomes[name].simulations, strict=True)
                ratio = statistics.fmean(ratio / count for ratio, count in played)  # of times, per simulation
                simulations[name] = max(1, round(1 / ratio))
        if arguments.json:
            report = {
                "network": str(arguments.network),
                "base": base.model_dump(mode="json"),
                "simulations": arguments.simulations,
                "seed": arguments.seed,
                "against": arguments.against,
                "results": [outcome.as_dict() for outcome in outcomes.values()],
            }
            write_atomically(arguments.json, json.dumps(report, indent=1).encode())


if __name__ == "__main__":
    main()
