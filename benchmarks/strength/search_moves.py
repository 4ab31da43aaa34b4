"""Screen search settings without games: what are the moves worth that they change?

    python benchmarks/strength/search_moves.py models/go9.safetensors --try search.match_policy_temperature=1.36 \\
        --try search.c_puct=0.8 --try search.fpu_reduction=0.4

One network searches --positions undecided positions of its own games with the settings as they are, and again with each
--try. Wherever a try changes the move, a search of --judge simulations, with the settings as they are, values the
positions after both moves. The *gain* is the mean difference in value, over all positions, in thousandths of a win or
loss; a game has 30 to 40 moves of each player. *Differs* is the share of positions in which the move is another.

All searches share one memory of evaluations, so a try takes a few per cent of the time of the games that would tell
as much (benchmarks/strength/search_settings.py). Simulations are equal, not times; the judge is the network itself and
sees what it overlooks as badly as the players do: confirm in games what looks good here. Only for games for two without
chance.
"""

import argparse
import sys
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.strength.search_settings import changed
from keima.base.intervals import mean_margin
from keima.config.flags import HIGHEST_SEED, whole
from keima.config.sections.search import SearchSettings
from keima.evaluation.match import opening_moves, query_all, states_after, step_rows
from keima.evaluation.match_worker import TREES, match_search_settings
from keima.games import Game
from keima.games.game import Actions, Planes, States
from keima.networks.architectures.auxiliary_heads import scoring_network
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.play.network_loader import UNKNOWN_RUN, PlayableNetwork, network_at
from keima.search.move_search import Search
from keima.search.puct import Evaluate
from keima.search.tree import Floats

GAMES = 64  # of the network with itself, at a time
SIMULATIONS = 32  # of a move in these games
OPENING_PLIES = 6  # random moves that they begin with
DRAWN_PLIES = 14  # after them, moves are drawn in proportion to their visits
UNDECIDED = 0.9  # the largest value, of either player, of positions that are kept


class Remembering:
    """A network that evaluates each observation once."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate, self._known = evaluate, dict[bytes, tuple[Floats, Floats]]()

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """Logits and values, as the network gives them, of observations ``[N, C, H, W]``."""
        keys = [blake2b(row, digest_size=16).digest() for row in observations]
        new = {key: row for row, key in enumerate(keys) if key not in self._known}
        if new:
            answers = self._evaluate(observations[list(new.values())])
            self._known |= dict(zip(new, zip(*answers, strict=True), strict=True))
        logits, values = zip(*(self._known[key] for key in keys), strict=True)
        return np.stack(logits), np.stack(values)


class Searches:
    """Searches with one network, which remembers evaluations."""

    def __init__(self, found: PlayableNetwork, device: str) -> None:
        self._found, self._device = found, device
        self._networks = dict[bool, tuple[Remembering, float]]()  # by whether points count

    def search(self, settings: SearchSettings, simulations: int) -> Search:
        """A search as in matches."""
        game, counts = self._found.game, settings.match_score_utility > 0
        if counts not in self._networks:
            network, utility = scoring_network(self._found.model.build(game), game, settings.match_score_utility)
            self._networks[counts] = (
                Remembering(Evaluator(network, game, device=self._device, max_batch=TREES)),
                utility,
            )
        evaluate, utility = self._networks[counts]
        return Search(
            game,
            evaluate,
            match_search_settings(settings),
            num_simulations=simulations,
            num_trees=TREES,
            score_utility=settings.match_score_utility if utility else 0.0,
        )


def undecided_positions(search: Search, game: Game, count: int, seed: int) -> States:
    """``count`` positions ``[count, S]`` of games of the network with itself, drawn from all undecided ones."""
    rng, kept, begun = np.random.default_rng(seed), list[States](), 0
    while len(kept) < 2 * count:
        states = states_after(game, opening_moves(game, GAMES, OPENING_PLIES, seed + begun))
        begun += 1
        for ply in range(game.max_plies):
            states = states[query_all(game.rules.terminal, states) == 0]
            if len(states) == 0:
                break
            found = search.find(states)
            undecided = np.abs(found.values) <= UNDECIDED
            states, actions, visits = states[undecided], found.actions[undecided], found.visits[undecided]
            kept += list(states.copy())
            if ply < DRAWN_PLIES:
                actions = np.array([rng.choice(len(row), p=row / row.sum()) for row in visits], np.int32)
            step_rows(game.rules.step, states, np.arange(len(states)), actions)
    return np.stack([kept[row] for row in rng.choice(len(kept), count, replace=False)])


class Judge:
    """Values moves by searching the positions after them."""

    def __init__(self, search: Search, game: Game, states: States) -> None:
        self._search, self._game, self._states = search, game, states
        self._known = dict[tuple[int, int], float]()  # by row and action: for the player who moves

    def values(self, rows: NDArray[np.int64], actions: Actions) -> NDArray[np.float64]:
        """The values ``[N]`` of playing ``actions`` ``[N]`` in the states ``rows`` ``[N]``, for those who play them."""
        moves = list(zip(rows.tolist(), actions.tolist(), strict=True))
        new = [move for move in dict.fromkeys(moves) if move not in self._known]
        if new:
            self._known |= dict(zip(new, self._judged(np.array(new)), strict=True))
        return np.array([self._known[move] for move in moves])

    def _judged(self, moves: NDArray[np.int64]) -> list[float]:
        rules, rows = self._game.rules, moves[:, 0]
        states, players = self._states[rows], query_all(rules.current_player, self._states[rows])
        step_rows(rules.step, states, np.arange(len(states)), moves[:, 1].astype(np.int32))
        over, values = query_all(rules.terminal, states) != 0, np.zeros(len(states))
        values[over] = [self._game.returns(states[row])[players[row]] for row in np.flatnonzero(over)]
        if not over.all():
            same = query_all(rules.current_player, states[~over]) == players[~over]
            values[~over] = np.where(same, 1, -1) * self._search.find(states[~over]).values
        return [float(value) for value in values]


def row_of(name: str, gains: NDArray[np.float64], differs: NDArray[np.bool_]) -> str:
    """A row of the table, of the gains ``[N]`` in all positions."""
    margin = mean_margin(gains) or 0.0
    return f"| {name} | {len(gains)} | {differs.mean():.1%} | {1000 * gains.mean():+.1f} ± {1000 * margin:.1f} |"


def main() -> None:
    """Search, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("network", type=Path, help="a model's file, or the folder of a run")
    add("--try", dest="tries", action="append", required=True, metavar="KEY=VALUE,...", help="settings to try")
    add("--base", default="", metavar="KEY=VALUE,...", help="changes of the settings as they are")
    add("--positions", type=whole(2), default=700, help="that are searched (default: %(default)s)")
    add("--simulations", type=whole(), default=200, help="of a search (default: %(default)s)")
    add("--judge", type=whole(), default=600, help="simulations that value a move (default: %(default)s)")
    add("--device", default="cpu", help="of the network: cpu, cuda or auto (default: %(default)s)")
    add("--seed", type=whole(0, HIGHEST_SEED), default=1, help="of the positions (default: %(default)s)")
    arguments = parser.parse_args()
    use_threads(1)
    try:
        found = network_at(arguments.network)
        base = changed(SearchSettings() if found.search is UNKNOWN_RUN else found.search, arguments.base)
        tried = {text: changed(base, text) for text in arguments.tries}
        searches = Searches(found, arguments.device)
        games = searches.search(base, SIMULATIONS)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    game = found.game
    if game.num_players != 2 or game.num_outcomes:
        parser.error(f"{game.name} is no game for two without chance")
    states = undecided_positions(games, game, arguments.positions, arguments.seed)
    judge = Judge(searches.search(base, arguments.judge), game, states)
    usual = searches.search(base, arguments.simulations).find(states).actions
    print("| settings | positions | differs | gain |\n|---|---|---|---|", flush=True)
    for name, settings in tried.items():
        actions = searches.search(settings, arguments.simulations).find(states).actions
        differs, gains = actions != usual, np.zeros(len(states))
        rows = np.flatnonzero(differs)
        gains[rows] = judge.values(rows, actions[rows]) - judge.values(rows, usual[rows])
        print(row_of(name, gains, differs), flush=True)


if __name__ == "__main__":
    main()
