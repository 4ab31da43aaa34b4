"""Self-play: many games side by side, each with its own tree, moved on by compiled code.

One ``advance`` is: simulate in all trees, evaluate the leaves in one batch, back them up, and make the moves of the
searches that are complete. A game's moves depend on its seed and on the evaluations alone, not on the games that are
played beside it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keima.base.random import Streams, exponential, uniform
from keima.compilation.decorators import compile_for_types, compiled_part, compiled_without_refcounts
from keima.config.sections.search import SearchSettings
from keima.data.records import CHANCE_OUTCOME, FULL_SEARCH, RANDOM_MOVE, GameRecord
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Actions, Game
from keima.search.cache import clear_position_cache
from keima.search.decide import (
    choose_action,
    policy_surprise,
    root_value,
    sample_action,
    write_move_weights,
    write_network_policy,
)
from keima.search.puct import Evaluate, Integers
from keima.search.simulate import (
    NOT_FINITE,
    are_finite,
    back_up_answers,
    collect_leaves,
    evaluate_batch,
    has_simulations_left,
    prepare_root,
    raise_if_failed,
)
from keima.search.tree import (
    AWAITED,
    NONE,
    OVER,
    UNPROVEN,
    Floats,
    find_child_by_action,
    make_node_root,
    reset_tree,
)
from keima.search.workspace import Workspace, make_workspace
from keima.self_play.game_log import FINISHED, IDLE, PLAYING, GameLog, make_game_log

MAX_WEIGHT = np.float32(65_535.0)  # that a record holds
EVEN_TEMPERATURE = 1e9  # the temperature at which every move is as likely as any other
NO_MOVES = np.empty(0, np.int32)


class MoveParams(NamedTuple):
    """The parameters of move selection, from ``SearchSettings``."""

    noisy_cheap_searches: bool
    num_simulations: int
    cheap_simulations: int
    full_search_probability: float
    temperature: float
    temperature_final: float
    temperature_halflife: float
    opening_random_moves: float
    opening_even_share: float
    random_move_share: float
    resignation: bool
    resign_below: float
    resign_after: int
    no_resign_fraction: float
    max_plies: int


def make_move_params(settings: SearchSettings, game: Game) -> MoveParams:
    """Return the compiled code's view of ``settings``. Scores in points never lead to resignation."""
    halflife = (
        max(game.observation_shape[1:]) if settings.temperature_halflife == "auto" else settings.temperature_halflife
    )
    return MoveParams(
        noisy_cheap_searches=settings.algorithm == "gumbel",  # whose moves are chosen by its noise
        num_simulations=settings.num_simulations,
        cheap_simulations=settings.cheap_simulations,
        full_search_probability=settings.full_search_probability,
        temperature=settings.temperature,
        temperature_final=settings.temperature_final,
        temperature_halflife=float(halflife),
        opening_random_moves=settings.opening_random_moves,
        opening_even_share=settings.opening_even_share,
        random_move_share=settings.random_move_share,
        resignation=settings.resignation.enabled and game.num_players == 2,
        resign_below=-settings.resignation.threshold,
        resign_after=settings.resignation.consecutive,
        no_resign_fraction=settings.resignation.no_resign_fraction,
        max_plies=game.max_plies,
    )


class GamesInPlay(NamedTuple):
    """All that compiled self-play of B games reads and writes: game ``b`` is searched in tree ``b``."""

    search: Workspace
    moves: MoveParams
    log: GameLog
    renumbered: Integers  # [M] scratch


class SelfPlay:
    """Games of a network against itself.

    Args:
        game: what is played.
        evaluate: the network.
        settings: how it searches and moves.
        parallel_games: how many games are played side by side (B); a batch has up to B * leaves_per_tree positions.
        cache_positions: how many evaluations are remembered, 0 for none.
    """

    def __init__(
        self, game: Game, evaluate: Evaluate, settings: SearchSettings, *, parallel_games: int, cache_positions: int = 0
    ) -> None:
        self.game, self.evaluate, self.model_version = game, evaluate, 0
        self.evaluations = 0
        search = make_workspace(
            game,
            settings,
            num_trees=parallel_games,
            simulations=settings.num_simulations,
            cheap_simulations=settings.cheap_simulations,
            cache_positions=cache_positions,
        )
        self._log = make_game_log(game, parallel_games)
        self._games = GamesInPlay(
            search=search,
            moves=make_move_params(settings, game),
            log=self._log,
            renumbered=np.zeros(search.max_nodes, np.int32),
        )
        self._empty_answers = search.empty_answers
        self._waiting = 0  # positions that were asked for
        self._num_playing = 0
        self._finished = 0  # games that are still to be handed over
        self._begin_game = compile_for_types(begin_game, self._games, 0, np.uint64(0), 0, NO_MOVES)
        self._advance_games = compile_for_types(advance_games, self._games, *self._empty_answers)

    @property
    def parallel_games(self) -> int:
        """The number of games that can be in progress."""
        return len(self._log.slots)

    @property
    def num_playing(self) -> int:
        """The number of games in progress."""
        return self._num_playing

    def num_idle(self) -> int:
        """Return the number of idle slots, in which games could begin."""
        return len(self._log.slots) - self._num_playing

    def begin(self, seeds: Sequence[int], openings: Sequence[Actions] | None = None) -> None:
        """Start a game for each of ``seeds``.

        Args:
            openings: legal moves that each game begins with, after which it goes on; they are recorded as random ones.

        Raises:
            ValueError: there are not so many idle slots.
        """
        if len(seeds) > self.num_idle():
            raise ValueError(f"{len(seeds)} games cannot begin in {self.num_idle()} idle slots")
        idle = np.flatnonzero(self._log.slots.status == IDLE)
        for slot, seed, opening in zip(idle, seeds, openings or [NO_MOVES] * len(seeds), strict=False):
            self._games.search.states[slot] = self.game.start
            self._begin_game(self._games, int(slot), np.uint64(seed), self.model_version, opening)
        self._num_playing += len(seeds)

    def advance(self) -> list[GameRecord]:
        """Make one evaluation for every game in progress; return the games that have finished.

        Raises:
            ValueError: the network returned NaN or infinity, or too few rows.
        """
        if self._waiting == 0:  # all games that are under way have just begun
            self._back_up_and_search(self._empty_answers)
        if self._waiting > 0:
            observations = self._games.search.leaves.observations[: self._waiting]
            answers = evaluate_batch(self.evaluate, observations, self.game)
            self._back_up_and_search(answers)
            self.evaluations += len(answers[1])
        if self._finished == 0:
            return []
        self._num_playing -= self._finished
        self._finished = 0
        return [self._read_game_record(int(slot)) for slot in np.flatnonzero(self._log.slots.status == FINISHED)]

    def _back_up_and_search(self, answers: tuple[Floats, Floats]) -> None:
        waiting, finished = self._advance_games(self._games, *answers)
        self._waiting = raise_if_failed(waiting)
        self._finished += finished

    def change_model(self, model_version: int) -> None:
        """Forget the evaluations of the old network. Games continue from their positions with the new one.

        It may be an earlier one: a killed Coach that is resumed publishes the model of its checkpoint.
        """
        self.model_version, slots = model_version, self._log.slots
        slots.first_model = np.minimum(slots.first_model, model_version)
        slots.last_model = np.maximum(slots.last_model, model_version)
        clear_position_cache(self._games.search.cache)

    def _read_game_record(self, b: int) -> GameRecord:
        log, slot = self._log, self._log.slots[b]
        slot.status = IDLE
        plies, entries = int(slot.ply), int(slot.policy_entries)
        returns = self.game.returns(self._games.search.states[b])
        if slot.resigned:
            returns[slot.resigned - 1] = -1.0
            returns[2 - slot.resigned] = 1.0
        return GameRecord(
            returns=returns,
            first_model=int(slot.first_model),
            last_model=int(slot.last_model),
            seed=int(slot.seed),
            resigned=int(slot.resigned),
            actions=log.actions[b, :plies].copy(),
            root_values=log.root_values[b, :plies].copy(),
            flags=log.flags[b, :plies].copy(),
            surprise=log.surprise[b, :plies].copy(),
            policy_sizes=log.policy_sizes[b, :plies].copy(),
            policy_actions=log.policy_actions[b, :entries].copy(),
            policy_weights=log.policy_weights[b, :entries].copy(),
        )


@compiled_without_refcounts
def begin_game(games: GamesInPlay, b: int, seed: int, model_version: int, opening: Actions) -> None:
    """Start a game in slot ``b``, whose state is at the start already, and play its ``opening``."""
    moves, trees, streams = games.moves, games.search.trees, games.search.streams
    current_player, state = games.search.rules.current_player, games.search.states[b]
    streams[b] = seed
    slot = games.log.slots[b]
    slot.seed = seed
    slot.status = PLAYING
    slot.ply = 0
    slot.policy_entries = 0
    slot.first_model = slot.last_model = model_version
    slot.resigned = 0
    slot.hopeless_moves[0] = 0
    slot.hopeless_moves[1] = 0
    # Geometric from 0 (after the random openings of Wu 2019)
    slot.random_plies = int(exponential(streams, b) * moves.opening_random_moves)
    # Uniform in [0, 2 * share), so that the mean is the setting
    slot.random_move_share = 2 * moves.random_move_share * uniform(streams, b) if moves.random_move_share > 0 else 0.0
    slot.may_resign = moves.resignation and uniform(streams, b) >= moves.no_resign_fraction
    while current_player(state) == CHANCE:
        play_chance_outcome(games, b)
    for action in opening:
        play_unsearched_move(games, b, action, RANDOM_MOVE)
    reset_tree(trees, b, current_player(state))
    begin_move_search(games, b)


@compiled_part
def begin_move_search(games: GamesInPlay, b: int) -> None:
    """Set the simulations of the next move: none for a random move, else those of a full or of a cheap search."""
    moves, streams = games.moves, games.search.streams
    search, slot = games.search.trees.searches[b], games.log.slots[b]
    random = slot.ply < slot.random_plies
    search.active = True
    search.ready = False
    # Playout cap randomization: a full search with this probability, else a cheap one (Wu 2019, section 3.1)
    search.full = not random and (
        moves.full_search_probability >= 1.0 or uniform(streams, b) < moves.full_search_probability
    )
    search.noisy = search.full or (moves.noisy_cheap_searches and not random)
    search.budget = 0 if random else (moves.num_simulations if search.full else moves.cheap_simulations)


@compiled_without_refcounts
def advance_games(games: GamesInPlay, logits: Floats, values: Floats) -> tuple[int, int]:
    """Take the answers ``logits`` ``[N, A]`` and ``values`` ``[N, V]``, make the moves of complete searches, and find
    what to ask next.

    Trees are advanced one after the other: the network has displaced them all from the processor's cache, and each is
    loaded only once.

    Returns:
        The number n of positions to evaluate, ``games.search.leaves.observations[:n]``, or NOT_FINITE; and how many
        games were finished.
    """
    if not are_finite(logits, values):
        return NOT_FINITE, 0
    search, trees = games.search, games.search.trees
    answered = asked = int(np.int64(0))  # for a literal 0, numba would compile what takes it once more
    finished = 0
    for b in range(len(games.log.slots)):
        slot = games.log.slots[b]
        if slot.status != PLAYING:
            continue
        answered = back_up_answers(search, b, logits, values, answered)
        while (
            slot.status == PLAYING and trees.searches[b].waiting == 0
        ):  # a search may end, and a cache may know, without asking
            if trees.nodes[b, 0].stage == AWAITED or has_simulations_left(search.params, trees, b):
                asked = collect_leaves(search, b, asked)
                continue
            if not trees.searches[b].ready:
                prepare_root(search.params, trees, b, search.streams, search.leaves.scratch)
            make_move(games, b)
            if slot.status == PLAYING:
                begin_move_search(games, b)
            else:
                finished += 1
    return asked, finished


@compiled_part
def make_move(games: GamesInPlay, b: int) -> None:
    """Choose, record and play game ``b``'s next move, and resolve the chance events that follow, if any."""
    search, moves, log = games.search, games.moves, games.log
    rules, params, trees, state = search.rules, search.params, search.trees, search.states[b]
    slot, weights = log.slots[b], search.leaves.scratch[0]
    write_move_weights(params, trees, b, weights)
    value = root_value(params, trees, b, weights)
    if should_resign(games, b, value):
        slot.resigned = 1 + trees.nodes[b, 0].player
        slot.status = FINISHED
        return
    action, astray = choose_move(games, b, weights)
    child = play_searched_move(games, b, action, value, astray)
    while slot.ply < moves.max_plies and rules.current_player(state) == CHANCE and rules.terminal(state) == 0:
        outcome = play_chance_outcome(games, b)
        child = find_child_by_action(trees, b, child, outcome) if child != NONE else NONE
    if rules.terminal(state) != 0 or slot.ply >= moves.max_plies:
        slot.status = FINISHED
    elif params.subtree_reuse and child != NONE and trees.nodes[b, child].stage != OVER:
        make_node_root(trees, b, child, games.renumbered)
    else:
        reset_tree(trees, b, rules.current_player(state))


@compiled_part
def play_chance_outcome(games: GamesInPlay, b: int) -> int:
    """Draw, record and play a chance outcome in game ``b``; return it."""
    search = games.search
    outcome = sample_chance_outcome(search.rules, search.states[b], search.leaves.moves, search.streams, b)
    play_unsearched_move(games, b, outcome, CHANCE_OUTCOME)
    return outcome


@compiled_part
def play_unsearched_move(games: GamesInPlay, b: int, action: int, flag: int) -> None:
    """Record and play a move of game ``b`` that no search has chosen: a chance outcome, or one of an opening."""
    log = games.log
    slot = log.slots[b]
    log.actions[b, slot.ply] = action
    log.root_values[b, slot.ply] = 0.0
    log.flags[b, slot.ply] = flag
    log.surprise[b, slot.ply] = 0.0
    log.policy_sizes[b, slot.ply] = 0
    slot.ply += 1
    games.search.rules.step(games.search.states[b], np.int64(action))


@compiled_part
def move_temperature(moves: MoveParams, streams: Streams, log: GameLog, b: int) -> float:
    """Return the temperature of game ``b``'s next move: in a random opening 1 or, for an even choice, huge; later it
    falls towards the final one.
    """
    slot, share = log.slots[b], moves.opening_even_share
    if slot.ply < slot.random_plies:
        return EVEN_TEMPERATURE if share > 0 and uniform(streams, b) < share else 1.0
    # T(ply) = T_final + (T - T_final) * 0.5**(ply / halflife) (KataGo)
    return moves.temperature_final + (moves.temperature - moves.temperature_final) * 0.5 ** (
        slot.ply / moves.temperature_halflife
    )


@compiled_part
def choose_move(games: GamesInPlay, b: int, weights: Floats) -> tuple[int, bool]:
    """Record the policy target of game ``b``'s position, and choose a move; return also whether it is a random one."""
    search = games.search
    record_policy_target(games, b, weights)
    if is_random_move(games, b):
        write_network_policy(search.trees, b, weights)
        return sample_action(weights, EVEN_TEMPERATURE, search.streams, b), True
    temperature = move_temperature(games.moves, search.streams, games.log, b)
    return choose_action(search, b, weights, temperature), False


@compiled_part
def play_searched_move(games: GamesInPlay, b: int, action: int, value: float, astray: bool) -> int:
    """Record and make a move whose position was searched; return its child of the root, or NONE."""
    search, log = games.search, games.log
    slot = log.slots[b]
    log.actions[b, slot.ply] = action
    log.root_values[b, slot.ply] = value if search.params.has_rewards else min(max(value, -1.0), 1.0)
    if astray or slot.ply < slot.random_plies:
        log.flags[b, slot.ply] |= RANDOM_MOVE
    slot.ply += 1
    search.rules.step(search.states[b], np.int64(action))
    return find_child_by_action(search.trees, b, 0, action)


@compiled_part
def is_random_move(games: GamesInPlay, b: int) -> bool:
    """Draw whether game ``b`` makes a random move now, to reach positions that good play does not.

    Games in proven positions are played out without random moves.
    """
    slot, root = games.log.slots[b], games.search.trees.nodes[b, 0]
    if slot.random_move_share == 0 or slot.ply < slot.random_plies or root.proven != UNPROVEN:
        return False
    return uniform(games.search.streams, b) < slot.random_move_share


@compiled_part
def should_resign(games: GamesInPlay, b: int, value: float) -> bool:
    """Count the moves that the player to move found lost in a row; return whether the player resigns now.

    Random opening moves do not count: no search has judged them.
    """
    moves = games.moves
    slot, player = games.log.slots[b], games.search.trees.nodes[b, 0].player
    if not moves.resignation or slot.ply < slot.random_plies:
        return False
    slot.hopeless_moves[player] = slot.hopeless_moves[player] + 1 if value <= moves.resign_below else 0
    return slot.may_resign and slot.ply > 0 and slot.hopeless_moves[player] >= moves.resign_after


@compiled_part
def record_policy_target(games: GamesInPlay, b: int, weights: Floats) -> None:
    """Record the policy target ``weights`` ``[A]`` of a full search; a cheap search has none."""
    log, trees = games.log, games.search.trees
    slot = log.slots[b]
    log.flags[b, slot.ply] = 0
    log.surprise[b, slot.ply] = 0.0
    log.policy_sizes[b, slot.ply] = 0
    if not trees.searches[b].full:
        return
    # Policy target: w * min(1, 65535 / max w), rounded
    scale = min(np.float32(1.0), MAX_WEIGHT / weights[np.argmax(weights)])
    first = slot.policy_entries
    for action in range(len(weights)):
        weight = np.int64(weights[action] * scale + np.float32(0.5))
        if weight > 0:
            log.policy_actions[b, slot.policy_entries] = action
            log.policy_weights[b, slot.policy_entries] = weight
            slot.policy_entries += 1
    log.flags[b, slot.ply] = FULL_SEARCH
    log.surprise[b, slot.ply] = policy_surprise(trees, b, weights)
    log.policy_sizes[b, slot.ply] = slot.policy_entries - first
