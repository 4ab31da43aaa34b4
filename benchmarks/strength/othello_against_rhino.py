"""Matches of a run's Othello network against Rhino, an independent program (GRhino; Debian: apt-get install grhino).

    python benchmarks/strength/othello_against_rhino.py runs/othello
    python benchmarks/strength/othello_against_rhino.py runs/othello --levels 1 3 --games 40 --simulations 400

Rhino 0.16.1 searches by alpha-beta with an evaluation of patterns, plays the end exactly, and here has no book. It
plays over the Go Text Protocol and checks every move by its own rules. Two games start from each opening of a few
random moves, with colours swapped.
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness import Parser, Ratio, Report
from keima.base.reports.intervals import wilson_interval
from keima.config.flags import whole
from keima.config.load import load_settings
from keima.evaluation.match import (
    MatchResult,
    Player,
    SearchPlayer,
    draw_opening_moves,
    play_match_from,
    play_opening_moves,
)
from keima.evaluation.match_worker import make_match_search
from keima.games import Game, load_game
from keima.networks.files.heading import find_run_model
from keima.play.arena.ladder import find_program
from keima.play.arena.players import read_model
from keima.play.engines.gtp_client import GtpClient, GtpPlayer

MOVE_SECONDS = 60.0


def play_match(game: Game, player: Player, path: Path, *, level: int, games: int, plies: int, seed: int) -> MatchResult:
    """Play the games of a player against Rhino at a level."""
    opened = draw_opening_moves(game, games // 2, plies, seed)
    with GtpClient([path, "--book=0", f"--level={level}"]) as engine:
        rhino = GtpPlayer(game, engine, setup=["set_game Othello"], seed=seed, seconds=MOVE_SECONDS)
        return play_match_from(game, play_opening_moves(game, opened), player, rhino, seed=seed, opening_moves=opened)


def main() -> None:
    """Measure and print."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--version", type=whole(), help="the model's version (default: the newest accepted one)")
    parser.option("--levels", whole(1, 5), (1, 3), quick=(1,), help="of Rhino")
    parser.option("--games", whole(2), 40, quick=2, help="for each level")
    parser.option("--simulations", whole(), 100, quick=8, help="of the network, a move")
    parser.option("--opening-plies", whole(), 6, help="random moves of an opening")
    parser.option("--seed", whole(), 1, help="of the openings")
    arguments = parser.parse()
    path = find_program("gtp-rhino")
    if path is None:
        parser.error("Rhino is not here: install it (Debian: apt-get install grhino)")
    model = read_model(find_run_model(arguments.run, arguments.version))
    game = load_game(model.description.game, **model.description.options)
    settings = load_settings(arguments.run / "config.yaml").search
    player = SearchPlayer(make_match_search(game, model, settings, num_simulations=arguments.simulations))
    play = partial(
        play_match, game, player, path, games=arguments.games, plies=arguments.opening_plies, seed=arguments.seed
    )
    with Report(arguments) as report:
        table = report.table("Othello against Rhino", "level", "wins", "draws", "losses", "score")
        for level in arguments.levels:
            found = play(level=level)
            points, count = found.wins + found.draws / 2, found.scores.size
            score = Ratio(points / count, *wilson_interval(points, count))
            table.add(str(level), found.wins, found.draws, found.losses, score)


if __name__ == "__main__":
    main()
