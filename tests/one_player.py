"""Games of 2048 by a random player, as records and as figures."""

from dataclasses import replace

import numpy as np

from keima.base.reports.run_reports import EvaluationReport, IterationReport, MilestoneReport, ScoreReport
from keima.data.records import CHANCE_OUTCOME, FULL_SEARCH, GameBatch
from keima.games import CHANCE, load_game
from keima.games.game import Game, States
from tests import example_reports

SMALL = load_game("twenty48", height=3, width=3)  # with short games


def random_batch(
    game: Game = SMALL, *, games: int = 4, seed: int = 1, batch_id: str = "run1-worker1-000001"
) -> GameBatch:
    """Return games in which each move has a policy: a weight of 2 for the move played, of 1 for other legal moves."""
    random = np.random.default_rng(seed)
    lengths, returns, actions, flags, sizes, entries, weights = [], [], [], [], [], [], []
    for _ in range(games):
        state, first = game.initial_state(), len(actions)
        while not game.terminal(state):
            chance = game.current_player(state) == CHANCE
            legal = game.chance_outcomes(state)[0] if chance else game.legal_actions(state)
            actions.append(int(random.choice(legal)))
            flags.append(CHANCE_OUTCOME if chance else FULL_SEARCH)
            sizes.append(0 if chance else len(legal))
            entries += [] if chance else legal.tolist()
            weights += [] if chance else [2 if action == actions[-1] else 1 for action in legal]
            game.play(state, actions[-1])
        lengths.append(len(actions) - first)
        returns.append(game.returns(state))
    return GameBatch(
        batch_id=batch_id,
        run_id="run1",
        worker="worker1",
        game=game.name,
        options=game.options,
        rules_version=game.rules_version,
        first_game=0,
        lengths=np.array(lengths, np.int32),
        returns=np.stack(returns),
        first_model=np.full(games, 1, np.int32),
        last_model=np.full(games, 2, np.int32),
        seeds=np.arange(games, dtype=np.uint64),
        resigned=np.zeros(games, np.uint8),
        actions=np.array(actions, np.int32),
        root_values=np.full(len(actions), 50.0, np.float32),
        flags=np.array(flags, np.uint8),
        surprise=np.zeros(len(actions), np.float32),
        policy_sizes=np.array(sizes, np.int32),
        policy_actions=np.array(entries, np.int32),
        policy_weights=np.array(weights, np.uint16),
    )


def ends(batch: GameBatch, game: Game = SMALL) -> list[States]:
    """Return where each game of the batch ends."""
    states = []
    for moves in np.split(batch.actions, np.cumsum(batch.lengths)[:-1]):
        state = game.initial_state()
        for action in moves:
            game.play(state, int(action))
        states.append(state)
    return states


def score(mean: float) -> ScoreReport:
    """Return the figures of 100 games, two in five of which have made a 2048."""
    shares = {512: 0.9, 1024: 0.7, 2048: 0.4, 4096: 0.0}
    parts = [
        MilestoneReport(milestone=tile, share=share, low=share, high=min(1.0, share + 0.1))
        for tile, share in shares.items()
    ]
    return ScoreReport(games=100, mean=mean, margin=500.0, median=mean - 1000, best=2 * mean, milestones=tuple(parts))


def iteration(number: int, *, measured: bool = False) -> IterationReport:
    """Return an iteration of a run of 2048, whose figures follow from its number."""
    report = example_reports.iteration(number)
    nothing = dict.fromkeys(("first_player_wins", "draws", "resigned", "false_resignations"))
    play = replace(report.self_play, score=score(2000.0 * number), **nothing)
    found = (
        EvaluationReport(model_version=number, num_simulations=50, score=score(3000.0 * number)) if measured else None
    )
    return replace(report, self_play=play, evaluation=found)
