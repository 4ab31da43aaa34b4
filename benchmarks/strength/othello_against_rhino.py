"""Matches of a run's Othello network against Rhino, an independent program (GRhino; Debian: apt-get install grhino).

    python benchmarks/strength/othello_against_rhino.py runs/othello
    python benchmarks/strength/othello_against_rhino.py runs/othello --levels 1 3 --games 40 --simulations 400

Rhino 0.16.1 searches by alpha-beta with an evaluation of patterns, plays the end exactly, and here has no book. It
plays over the Go Text Protocol and checks every move by its own rules. Two games start from each opening of a few
random moves, with colours swapped.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from keima.base.intervals import wilson
from keima.config.flags import whole
from keima.config.load import load_settings
from keima.evaluation.match import MatchResult, Player, SearchPlayer, opening_moves, play_from, states_after
from keima.evaluation.match_worker import search_for_strength
from keima.games import Game, load_game
from keima.networks.files.model_heading import model_path_of_run
from keima.play.arena.ladder import find_program
from keima.play.arena.players import read_model
from keima.play.engines.gtp_client import GtpClient, GtpPlayer

LEVELS = range(1, 6)
MOVE_SECONDS = 60.0


class RhinoPlayer(GtpPlayer):
    """Rhino as a player. It passes as Keima's Othello does: who cannot move does nothing, and the other moves again."""

    def settings(self) -> list[str]:
        """See ``GtpPlayer``."""
        return ["set_game Othello"]

    def movers(self, moves: Sequence[int]) -> list[int]:
        """See ``GtpPlayer``."""
        state = self._game.initial_state()
        found = [self._game.current_player(state)]
        for move in moves:
            self._game.play(state, move)
            found.append(self._game.current_player(state))
        return found


def match(game: Game, player: Player, path: Path, level: int, *, games: int, plies: int, seed: int) -> MatchResult:
    """The games of a player against Rhino at a level."""
    opened = opening_moves(game, games // 2, plies, seed)
    with GtpClient([path, "--book=0", f"--level={level}"]) as engine:
        rhino = RhinoPlayer(game, engine, seed=seed, seconds=MOVE_SECONDS)
        return play_from(game, states_after(game, opened), player, rhino, seed=seed, opened=opened)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--version", type=whole(), help="the model's version (default: the newest accepted one)")
    parser.add_argument("--levels", type=whole(), nargs="+", default=[1, 3], choices=LEVELS, help="(default: 1 3)")
    parser.add_argument("--games", type=whole(2), default=40, help="for each level (default: 40)")
    parser.add_argument("--simulations", type=whole(), default=100, help="of the network, a move (default: 100)")
    parser.add_argument("--opening-plies", type=whole(), default=6, help="random moves per opening (default: 6)")
    parser.add_argument("--seed", type=whole(), default=1, help="of the openings (default: 1)")
    arguments = parser.parse_args()
    path = find_program("gtp-rhino")
    if path is None:
        parser.error("Rhino is not here: install it (Debian: apt-get install grhino)")
    model = read_model(model_path_of_run(arguments.run, arguments.version))
    game = load_game(model.description.game, **model.description.options)
    settings = load_settings(arguments.run / "config.yaml").search
    search = search_for_strength(game, model, settings, num_simulations=arguments.simulations)
    for level in arguments.levels:
        found = match(
            game,
            SearchPlayer(search),
            path,
            level,
            games=arguments.games,
            plies=arguments.opening_plies,
            seed=arguments.seed,
        )
        points, count = found.wins + found.draws / 2, found.scores.size
        low, high = wilson(points, count)
        counts = f"{found.wins} wins, {found.draws} draws, {found.losses} losses"
        print(f"Rhino, level {level}: {counts}: {points / count:.1%} ({low:.1%} to {high:.1%})", flush=True)


if __name__ == "__main__":
    main()
