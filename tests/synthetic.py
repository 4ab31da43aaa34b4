"""Batches of games by real rules, with moves and policies from a toy search: a PUCT bandit over random priors and
values.

Its policies have about as many entries, and are about as similar to those of the previous position, as those of a
half-trained network.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.random import Streams, normal, seed_stream, uniform
from keima.compilation.decorators import compiled
from keima.data.records import FULL_SEARCH, GameBatch
from keima.games.game import Actions, Game, Rules, States


def synthetic_batch(
    game: Game,
    *,
    games: int = 20,
    seed: int = 1,
    num_simulations: int = 16,
    sharpness: float = 1.0,
    first_play: float = -0.15,
    full_share: float = 1.0,
    resign_share: float = 0.0,
    **header: Any,
) -> GameBatch:
    """Return ``games`` games, ``resign_share`` of which end early; ``full_share`` of the moves have a policy.

    The sharper the priors, and the lower the value of moves not yet tried (``first_play``), the fewer entries the
    policies have.
    """
    room = games * game.max_plies
    width = min(num_simulations, game.num_actions)
    columns: dict[str, NDArray[Any]] = {
        "lengths": np.zeros(games, np.int32),
        "returns": np.zeros((games, game.num_players), np.float32),
        "first_model": np.full(games, 7, np.int32),
        "last_model": np.full(games, 8, np.int32),
        "seeds": np.array([seed_stream(seed, index) for index in range(games)], np.uint64),
        "resigned": np.zeros(games, np.uint8),
        "actions": np.zeros(room, np.int32),
        "root_values": np.zeros(room, np.float32),
        "flags": np.zeros(room, np.uint8),
        "surprise": np.zeros(room, np.float32),
        "policy_sizes": np.zeros(room, np.int32),
        "policy_actions": np.zeros(room * width, np.int32),
        "policy_weights": np.zeros(room * width, np.uint16),
    }
    play_all(
        game.rules,
        game.start,
        game.num_actions,
        num_simulations,
        sharpness,
        first_play,
        full_share,
        resign_share,
        tuple(columns.values()),
    )
    positions, entries = int(columns["lengths"].sum()), int(columns["policy_sizes"].sum())
    for name in ("actions", "root_values", "flags", "surprise", "policy_sizes"):
        columns[name] = columns[name][:positions].copy()
    for name in ("policy_actions", "policy_weights"):
        columns[name] = columns[name][:entries].copy()
    texts = {
        "batch_id": f"run1-worker1-{seed:06d}",
        "run_id": "run1",
        "worker": "worker1",
        "game": game.name,
        "options": game.options,
    }
    return GameBatch(**(texts | {"rules_version": game.rules_version, "first_game": 1200} | columns | header))


@compiled
def play_all(
    rules: Rules,
    start: States,
    num_actions: int,
    num_simulations: int,
    sharpness: float,
    first_play: float,
    full_share: float,
    resign_share: float,
    columns: Any,
) -> None:
    lengths, returns, _, _, seeds, resigned, actions, values, flags, surprise, sizes, policy_actions, policy_weights = (
        columns
    )
    legal_actions, step, terminal, player = rules.legal_actions, rules.step, rules.terminal, rules.current_player
    legal = np.empty(num_actions, np.int32)
    m, e = 0, 0
    for g in range(lengths.size):
        streams = seeds[g : g + 1].copy()
        state = start.copy()
        logits = np.zeros(num_actions)
        leaves = uniform(streams, 0) < resign_share
        while not terminal(state):
            if leaves and lengths[g] > 4 and uniform(streams, 0) < 0.1:
                resigned[g] = 1 + player(state)
                break
            for action in range(num_actions):
                logits[action] = 0.9 * logits[action] + 0.43 * normal(streams, 0)
            count = legal_actions(state, legal)
            prior = np.exp(sharpness * logits[legal[:count]])
            visits, values[m] = bandit(streams, prior / prior.sum(), num_simulations, first_play)
            if uniform(streams, 0) < full_share:
                flags[m] = FULL_SEARCH
                surprise[m] = divergence(visits / visits.sum(), prior / prior.sum())
                sizes[m] = write_policy(visits, legal, policy_actions[e:], policy_weights[e:])
            actions[m] = legal[draw(streams, visits)]
            step(state, np.int64(actions[m]))
            lengths[g] += 1
            e += sizes[m]
            m += 1
        rules.returns(state, returns[g])
        if resigned[g] != 0:
            returns[g] = 1.0
            returns[g, resigned[g] - 1] = -1.0


@compiled
def bandit(
    streams: Streams, prior: NDArray[np.float64], num_simulations: int, first_play: float
) -> tuple[NDArray[np.float64], float]:
    """Return the visit counts of a PUCT search of one ply, and the mean value."""
    visits, total = np.zeros(prior.size), np.zeros(prior.size)
    means = np.empty(prior.size)
    for i in range(prior.size):
        means[i] = 0.15 * normal(streams, 0)
    for simulation in range(num_simulations):
        best, best_score = 0, -np.inf
        for i in range(prior.size):
            mean = total[i] / visits[i] if visits[i] > 0 else first_play
            score = mean + 1.25 * prior[i] * math.sqrt(simulation + 1) / (1 + visits[i])
            if score > best_score:
                best, best_score = i, score
        visits[best] += 1
        total[best] += means[best] + 0.2 * normal(streams, 0)
    return visits, min(1.0, max(-1.0, total.sum() / num_simulations))


@compiled
def divergence(target: NDArray[np.float64], prior: NDArray[np.float64]) -> float:
    total = 0.0
    for i in range(target.size):
        if target[i] > 0:
            total += target[i] * math.log(target[i] / prior[i])
    return max(total, 0.0)


@compiled
def write_policy(
    visits: NDArray[np.float64], legal: Actions, policy_actions: Actions, policy_weights: NDArray[np.uint16]
) -> int:
    n = 0
    for i in range(visits.size):
        if visits[i] > 0:
            policy_actions[n], policy_weights[n] = legal[i], visits[i]
            n += 1
    return n


@compiled
def draw(streams: Streams, visits: NDArray[np.float64]) -> int:
    left = uniform(streams, 0) * visits.sum()
    for i in range(visits.size):
        left -= visits[i]
        if left < 0:
            return i
    return visits.size - 1
