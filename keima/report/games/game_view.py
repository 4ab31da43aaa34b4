"""Recorded games for people: move by move, with search's view of each position."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.reports.formats import game_title
from keima.data.imports.imported_games import state_after_actions
from keima.data.ledger import Ledger, LedgerMismatch, read_ledger
from keima.data.receive import load_received
from keima.data.records import AGREED, RANDOM_MOVE, GameBatch, GameRecord
from keima.games import CHANCE, Game, load_game
from keima.games.game import States
from keima.networks.predictions import Predict, Predictions
from keima.play.session import move_name
from keima.report.games.drawn_board import Cells, board_kind, draw_board, points_of_move

SAMPLE_GAMES = 3  # shown for a run
VIEW_BATCH = 64  # positions that a network evaluates at once


@dataclass(frozen=True, kw_only=True)
class PositionView:
    """A position in which a player is to move, or the last one."""

    ply: int  # steps before it, chance outcomes included
    board: str  # as text
    cells: Cells = ()  # see ``DrawnBoard``
    svg: str = ""
    player: int = 0
    move: str = ""  # that was played; empty at the end
    points: tuple[int, ...] = ()  # that it was played on; see ``points_of_move``
    drawn: bool = False  # whether the move was drawn at random, rather than found by search
    outcomes: tuple[str, ...] = ()  # chance outcomes after the move
    value: float | None = (
        None  # the search's value for the player: from -1, lost, to 1, won, or the points still to be made
    )
    # The policy target: moves with their shares, largest first; empty after a cheap search.
    policy: tuple[tuple[str, float], ...] = ()
    policy_points: tuple[tuple[int, ...], ...] = ()  # of the same moves
    score: float | None = None  # of a one-player game
    # By point, if the game is won by area: from 100, certainly player 0's, to -100.
    ownership: tuple[int, ...] = ()
    score_lead: float | None = None  # points by which player 0 wins


@dataclass(frozen=True, kw_only=True)
class GameView:
    """A recorded game."""

    game: str
    kind: str  # of board; see ``board_kind``
    players: int
    number: int  # in the run, from 1, in the order of receipt
    worker: str
    models: tuple[int, int]  # that played the first move and the last
    result: str
    moments: tuple[PositionView, ...]


def load_game_view(run: Path, number: int) -> GameView:
    """Load game ``number`` of a run, from 1 in order of receipt; -1 is the last one, -2 the one before.

    Raises:
        ValueError: there is no such run or game, this program does not play it, or its file is damaged.
        OSError: the file of the game is missing or unreadable.
    """
    with read_ledger(run) as ledger:
        game, total = load_game_of_run(ledger), ledger.count_received_games()
        index = number - 1 if number > 0 else total + number
        if not 0 <= index < total or number == 0:
            raise ValueError(f"{run} has {total:,} games: there is no game {number}")
        row, place = ledger.find_game(index)
    return make_game_view(game, load_received(run, row), place, number=index + 1)


def load_sample_games(run: Path, predict: Predict | None = None) -> list[GameView]:
    """Load a few games of the newest batch: the last ones, or in one-player games those with the best, median and
    lowest score.

    Args:
        run: its folder.
        predict: the network's predictions, for games won by area.

    Raises:
        ValueError, OSError: as ``load_game_view``.
    """
    with read_ledger(run) as ledger:
        game, total = load_game_of_run(ledger), ledger.count_received_games()
        if not total:
            return []
        row, _ = ledger.find_game(total - 1)
    batch, before = load_received(run, row), total - row.games
    chosen = list(range(batch.num_games))[-SAMPLE_GAMES:]
    if game.num_players == 1:
        order = np.argsort(-batch.returns[:, 0], kind="stable").tolist()
        chosen = list(dict.fromkeys((order[0], order[len(order) // 2], order[-1])))
    return [make_game_view(game, batch, index, number=before + index + 1, predict=predict) for index in chosen]


def load_game_of_run(ledger: Ledger) -> Game:
    """Return the run's game.

    Raises:
        LedgerMismatch: this program does not have it.
    """
    try:
        game = load_game(ledger.game, **ledger.options)
    except ValueError as error:
        raise LedgerMismatch(f"{ledger.folder}: {error}") from error
    if game.rules_version != ledger.rules_version:
        versions = (
            f"rules version {ledger.rules_version} of {game.name}, and this program has version {game.rules_version}"
        )
        raise LedgerMismatch(f"{ledger.folder} was played by {versions}")
    return game


def make_game_view(
    game: Game, batch: GameBatch, index: int, *, number: int, predict: Predict | None = None
) -> GameView:
    """Return game ``index`` of a verified batch, with the predictions of ``predict`` if the game is won by area."""
    record = batch.game_record(index)
    moments = make_position_views(game, record)
    if game.won_by_area:
        moments = moments if predict is None else _with_predictions(game, record, moments, predict)
        moments[-1] = _with_final_score(game, record, moments[-1])
    return GameView(
        game=game_title(game.name, game.options),
        kind=board_kind(game),
        players=game.num_players,
        number=number,
        worker=batch.worker,
        models=(int(record.first_model), int(record.last_model)),
        result=result_text(game, record),
        moments=tuple(moments),
    )


def _with_predictions(
    game: Game, record: GameRecord, moments: Sequence[PositionView], predict: Predict
) -> list[PositionView]:
    """Return the positions with predicted ownership and score lead, in a game without chance."""
    states = [game.initial_state()]
    for action in record.actions.tolist():
        states.append(states[-1].copy())
        game.play(states[-1], action)
    found = []
    for first in range(0, len(states), VIEW_BATCH):
        some = states[first : first + VIEW_BATCH]
        predictions = predict(np.stack([game.observe(state) for state in some]))
        for row, (state, moment) in enumerate(zip(some, moments[first : first + VIEW_BATCH], strict=True)):
            ownership, score_lead = predict_final_score(game, state, predictions, row)
            found.append(replace(moment, ownership=ownership, score_lead=score_lead))
    return found


def _with_final_score(game: Game, record: GameRecord, moment: PositionView) -> PositionView:
    """Return the last position with its final score, if the game was played out."""
    if record.resigned:
        return moment
    ownership, score_lead = count_final_score(game, state_after_actions(game, record.actions))
    return replace(moment, ownership=ownership, score_lead=score_lead)


def predict_final_score(
    game: Game, state: States, predictions: Predictions, row: int = 0
) -> tuple[tuple[int, ...], float | None]:
    """Return who will own each point of a position, in percent, and player 0's lead in points, from row ``row`` of the
    predictions; empty and None for what is not predicted.
    """
    sign, owned, leads = 1 - 2 * game.current_player(state), predictions.ownership, predictions.score_leads
    ownership = () if owned is None else _to_percent(sign * owned[row])
    return ownership, None if leads is None else sign * float(leads[row])


def count_final_score(game: Game, state: States) -> tuple[tuple[int, ...], float]:
    """Return who owns each point of a last position by the rules, in percent, and player 0's lead in points."""
    ownership = np.empty(game.point_symmetries.shape[1], np.int32)
    score_lead = game.final_score(state, ownership) / 2
    return _to_percent(ownership), score_lead


def _to_percent(shares: NDArray[Any]) -> tuple[int, ...]:
    return tuple(np.rint(100.0 * shares).astype(int).tolist())


def make_position_views(game: Game, record: GameRecord) -> list[PositionView]:
    """Return every position in which a player was to move, and the last one."""
    state, entry, found = game.initial_state(), 0, []
    waiting: PositionView | None = None  # for chance outcomes
    outcomes: list[str] = []
    for ply, action in enumerate(record.actions.tolist()):
        if game.current_player(state) == CHANCE:
            outcomes.append(game.outcome_name(action))
        else:
            found += [_with_outcomes(waiting, outcomes)] if waiting else []
            outcomes = []
            entries = slice(entry, entry := entry + int(record.policy_sizes[ply]))
            waiting = PositionView(
                **_describe_board(game, state),
                ply=ply,
                player=game.current_player(state),
                move=move_name(game, state, action),
                points=points_of_move(game, state, action),
                drawn=bool(record.flags[ply] & RANDOM_MOVE),
                value=float(record.root_values[ply]),
                **_describe_policy(
                    game, state, record.policy_actions[entries].tolist(), record.policy_weights[entries].tolist()
                ),
            )
        game.play(state, action)
    found += [_with_outcomes(waiting, outcomes)] if waiting else []
    return [*found, PositionView(**_describe_board(game, state), ply=len(record.actions))]


def _with_outcomes(moment: PositionView, outcomes: Sequence[str]) -> PositionView:
    return PositionView(**(vars(moment) | {"outcomes": tuple(outcomes)}))


def _describe_board(game: Game, state: States) -> dict[str, Any]:
    drawn = draw_board(game, state)
    score = float(game.returns(state)[0]) if game.num_players == 1 else None
    return {"board": drawn.text, "cells": drawn.cells, "svg": drawn.svg, "score": score}


def _describe_policy(game: Game, state: States, actions: Sequence[int], weights: Sequence[int]) -> dict[str, Any]:
    """Return the shares of moves, the largest first, and the points of these moves."""
    total, order = sum(weights), sorted(range(len(actions)), key=lambda entry: -weights[entry])
    return {
        "policy": tuple((move_name(game, state, actions[entry]), weights[entry] / total) for entry in order),
        "policy_points": tuple(points_of_move(game, state, actions[entry]) for entry in order),
    }


def result_text(game: Game, record: GameRecord) -> str:
    """Return the result in words."""
    if game.num_players == 1:
        return f"score {record.returns[0]:,.0f}"
    if game.num_players > 2:
        return f"returns {', '.join(f'{each:g}' for each in record.returns.tolist())}"
    won = float(record.returns[0])
    result = "the first player won" if won > 0 else "the second player won" if won < 0 else "a draw"
    if record.resigned == AGREED:
        return "a draw, as agreed"
    return f"{result}, the other resigned" if record.resigned else result
