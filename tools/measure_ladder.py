#!/usr/bin/env python3
"""Measure how strong the rungs of a ladder are, by games of each against its neighbours.

    PYTHONPATH=$PWD .venv/bin/python tools/measure_ladder.py keima/shipped/ladders/go_9.yaml
    PYTHONPATH=$PWD .venv/bin/python tools/measure_ladder.py mine.yaml --pairs a:1,b:3 --games 40

Each rung that is installed plays the next one in the order of the file, or those that --pairs names. One line follows
for each pair, for the file's "matches", and then the ratings by all matches, those in the file included.
"""

import argparse
import itertools
import json
import sys
from pathlib import Path

from keima.base.random import seed_stream
from keima.config.flags import whole
from keima.config.own_modules import keep_module
from keima.games import load_game
from keima.play.arena.match_benchmark import play_pairs
from keima.play.rating.ladder_file import Ladder, PlayedMatch, load_ladder, rung_name
from keima.play.rating.rungs import make_rungs


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("ladder", type=Path, help="the file")
    add("--game", help="the game, if it is not shipped: its file")
    add("--options", type=json.loads, default={}, help="more options of the game, as JSON")
    add("--pairs", nargs="+", metavar="A,B", help="only these pairs")
    add("--games", type=whole(0), default=20, help="for each pair")
    add("--seed", type=whole(0), default=1)
    add("--processes", type=whole(), default=1)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse()
    ladder = load_ladder(arguments.ladder)
    name = keep_module(Path(arguments.game)) if arguments.game else ladder.game
    game = load_game(name, **(ladder.options | arguments.options))
    found, skipped = make_rungs(ladder, game)
    order = [rung_name(engine, rung) for engine in ladder.engines for rung in engine.rungs]
    rungs = {rung.name: rung.entrant for rung in sorted(found, key=lambda rung: order.index(rung.name))}
    print("skipped:", ", ".join(each.name for each in skipped) or "none", file=sys.stderr)
    pairs = [tuple(pair.split(",")) for pair in arguments.pairs or map(",".join, itertools.pairwise(rungs))]
    played = list[PlayedMatch]()
    for first, second in pairs if arguments.games else []:
        before = sum(
            each.wins + each.draws + each.losses
            for each in ladder.matches
            if {each.first, each.second} == {first, second}
        )
        match = play_pairs(
            game,
            rungs[first],
            rungs[second],
            games=arguments.games,
            opening_plies=ladder.opening_plies,
            seed=seed_stream(arguments.seed, "rungs", first, second, before),
            processes=arguments.processes,
        )
        played.append(PlayedMatch(**vars(match.result)))
        print("  - {" + ", ".join(f"{key}: {value}" for key, value in played[-1]) + "}", flush=True)
    rated = Ladder.model_validate({**ladder.model_dump(), "matches": (*ladder.matches, *played)}).strengths.rated
    for name, rating in sorted(rated.items(), key=lambda each: each[1].elo):
        print(f"{name:20} {rating.elo:7.0f} ± {rating.margin:.0f}")


if __name__ == "__main__":
    main()
