"""Play a job for evaluation games, on a worker or on the main node, and verify its result."""

from collections.abc import Callable, Sequence

import numpy as np

from keima.base.files import sha256_hex
from keima.base.random import Streams, seed_stream
from keima.base.steps import Steps, run_steps
from keima.compilation.decorators import compiled
from keima.config.sections.search import SearchSettings
from keima.data.verify import FAULTS, FINE, ILLEGAL_MOVE, IMPOSSIBLE_OUTCOME, is_subset
from keima.evaluation.match import (
    Fixture,
    MatchResult,
    MatchSession,
    Player,
    RandomPlayer,
    first_player_scores,
    make_chance_streams,
    make_opening_states,
)
from keima.evaluation.match_jobs import Contestant, EvaluationJob, EvaluationJobResult
from keima.games import Game
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Actions, MoveScratch, Rules, States
from keima.networks.architectures.auxiliary_heads import add_score_to_value
from keima.networks.files.model import Model
from keima.networks.inference.evaluator import Evaluator
from keima.search.move_search import Search
from keima.search.puct import Evaluate
from keima.self_play.tuning import split_into_batches

NUM_TREES = 64  # searched side by side
CACHE_BYTES = 32 * 2**20  # of remembered evaluations, for each network

MakePlayer = Callable[[Contestant], Player]


class InvalidMatchResult(ValueError):
    """The result of a job is invalid."""


def make_match_search_settings(settings: SearchSettings) -> SearchSettings:
    """Return the search of matches: self-play's without forced playouts, with one leaf per tree and the matches'
    lookahead.
    """
    ahead = settings.match_lookahead_plies
    return settings.model_copy(update={"forced_playouts": False, "leaves_per_tree": 1, "lookahead_plies": ahead})


def describe_match_search(settings: SearchSettings, num_simulations: int) -> str:
    """Return what is said of the search of matches and of play with people; ``settings`` are self-play's."""
    parts = ["Gumbel's search" if settings.algorithm == "gumbel" else "PUCT"]
    if plies := settings.match_lookahead_plies:
        parts.append(f"lookahead of {plies} {'ply' if plies == 1 else 'plies'}")
    if settings.match_policy_temperature != 1:
        parts.append(f"policy temperature {settings.match_policy_temperature:g}")
    return f"{num_simulations:,} simulations a move: {', '.join(parts)}"


def make_match_search(
    game: Game,
    model: Model,
    settings: SearchSettings,
    *,
    num_simulations: int,
    max_positions: int = 0,
    cached: bool = False,
    device: str = "auto",
) -> Search:
    """Return the search of evaluation games.

    Args:
        settings: self-play's.
        max_positions: per network call; 0: no limit.
        cached: remember evaluations from one move to the next, as long as nobody measures the time of each.
        device: of the network, as ``Evaluator`` has it.
    """
    limit = min(max_positions or NUM_TREES, NUM_TREES)
    network, score_utility = add_score_to_value(model.build(game), game, settings.match_score_utility)
    evaluator = Evaluator(network, game, device=device, max_batch=limit)
    evaluate: Evaluate = evaluator if limit == NUM_TREES else split_into_batches(evaluator, limit)
    return Search(
        game,
        evaluate,
        make_match_search_settings(settings),
        num_simulations=num_simulations,
        num_trees=NUM_TREES,
        cache_positions=count_cache_positions(game) if cached else 0,
        score_utility=score_utility,
    )


def count_cache_positions(game: Game) -> int:
    """Return how many evaluations fit into ``CACHE_BYTES``: a power of two, as the cache has slots."""
    each = 8 + 4 * (game.num_actions + game.num_values)  # a key, logits and values
    return 1 << ((CACHE_BYTES // each).bit_length() - 1)


def job_openings(game: Game, job: EvaluationJob) -> States:
    """Return the openings ``[pairs, S]`` of a job."""
    return make_opening_states(game, job.match_pairs, job.opening_plies, job.seed)[
        job.first_pair : job.first_pair + job.pairs
    ]


def make_job_fixture(game: Game, job: EvaluationJob, players: MakePlayer) -> Fixture:
    """Return the games of a job.

    Args:
        players: make a player from a model.
    """
    seed = seed_stream(job.seed, "slice", job.first_pair)
    first, second = (players(who) if who else RandomPlayer(game, seed) for who in (job.first, job.second))
    return Fixture(first=first, second=second, starts=job_openings(game, job), seed=job.seed, first_pair=job.first_pair)


def play_job(game: Game, job: EvaluationJob, players: MakePlayer) -> tuple[States, MatchResult]:
    """Play a job; return its openings and games.

    Args:
        players: make a player from a model.
    """
    fixture = make_job_fixture(game, job, players)
    (result,) = run_steps(play_fixtures(game, [fixture]))
    return fixture.starts, result


def play_fixtures(game: Game, fixtures: Sequence[Fixture]) -> Steps[list[MatchResult]]:
    """Play fixtures side by side; return their results."""
    session, results = MatchSession(game), dict[str, MatchResult]()
    for number, fixture in enumerate(fixtures):
        session.begin(str(number), fixture)
    while len(results := results | session.take_results()) < len(fixtures):
        yield True
        session.advance()
    return [results[str(number)] for number in range(len(fixtures))]


def make_job_result(worker: str, job: EvaluationJob, starts: States, result: MatchResult) -> EvaluationJobResult:
    """Return the result file of a job's games."""
    scores = tuple(float(score) for score in result.scores.ravel())
    return EvaluationJobResult(
        worker=worker, job=job, openings=states_digest(starts), moves=result.moves, scores=scores
    )


def verify_job_result(game: Game, job: EvaluationJob, worker: str, result: EvaluationJobResult) -> MatchResult:
    """Return the games of a job, after replaying each through the rules.

    Raises:
        InvalidMatchResult: they were not played, or are invalid.
    """
    if result.refused:
        raise InvalidMatchResult(f"it did not play: {result.refused}")
    if (result.job, result.worker) != (job, worker):
        raise InvalidMatchResult("it is the result of another job")
    starts = job_openings(game, job)
    if result.openings != states_digest(starts):
        raise InvalidMatchResult("the openings do not match the seed")
    players = game.num_players
    games = players * job.pairs
    if not len(result.moves) == len(result.scores) == games:
        raise InvalidMatchResult(f"it has {len(result.moves)} games and {len(result.scores)} scores, not {games}")
    states = np.repeat(starts, players, axis=0)
    streams = make_chance_streams(job.seed, first_pair=job.first_pair, pairs=job.pairs, players=players)
    scratch = game.make_move_scratch()
    for number, moves in enumerate(result.moves):
        played = np.array(moves, np.int32)
        fault, ply = replay_game(game.rules, states[number], played, streams[number : number + 1], scratch)
        if fault != FINE:
            raise InvalidMatchResult(f"game {number} after {ply} moves: {FAULTS[fault]}")
        if not game.terminal(states[number]):
            raise InvalidMatchResult(f"game {number}: the moves end before the game does")
    scores = first_player_scores(game, states)
    if not np.array_equal(scores.ravel(), np.array(result.scores)):
        raise InvalidMatchResult("the scores do not match the games")
    return MatchResult(scores=scores, moves=result.moves)


def states_digest(starts: States) -> str:
    """Return the SHA-256 of states ``[N, S]``."""
    return sha256_hex(np.ascontiguousarray(starts).tobytes())


@compiled
def replay_game(rules: Rules, state: States, moves: Actions, streams: Streams, scratch: MoveScratch) -> tuple[int, int]:
    """Play the moves of a match game on ``state`` up to the first fault; return the fault and the number of moves.

    Chance outcomes must be those of stream 0.
    """
    legal_actions, step = rules.legal_actions, rules.step
    terminal, current_player = rules.terminal, rules.current_player
    legal = scratch.actions
    for ply in range(moves.size):
        if scratch.chances.size > 0 and terminal(state) == 0 and current_player(state) == CHANCE:
            if moves[ply] != sample_chance_outcome(rules, state, scratch, streams, 0):
                return IMPOSSIBLE_OUTCOME, ply
        elif not is_subset(moves[ply : ply + 1], legal[: legal_actions(state, legal)]):
            return ILLEGAL_MOVE, ply
        step(state, np.int64(moves[ply]))
    return FINE, moves.size
