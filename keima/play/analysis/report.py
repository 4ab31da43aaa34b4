"""Results of searches as responses of the protocol."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from keima.games.game import Game, States
from keima.games.go.rules import FORBIDDEN_PLANE
from keima.games.go.setup import stones_on_board
from keima.play.analysis.query import Position
from keima.play.analysis.searches import Job
from keima.play.analysis.syntax import BLACK, WHITE, Fields
from keima.search.analysis import Analysis, MoveAnalysis

DIGITS = 6  # decimals of numbers
FORBIDDEN = 3  # a point on which superko forbids to play, among the stones 0, 1 and 2 of a board


def describe_job(game: Game, job: Job, *, during: bool) -> Fields:
    """Return the response about a position, with the results so far.

    Args:
        during: whether its search continues.
    """
    response: Fields = {"id": job.query.identity, "turnNumber": job.position.turn, "isDuringSearch": during}
    if not job.has_results:
        return response | {"noResults": True}
    analysis, query, predictions = job.analysis, job.query, job.predictions
    assert analysis is not None
    sign = sign_of_perspective(query.perspective, job.position.player)
    lines = [line for line in analysis.best_moves(game.num_actions) if line.visits]
    if predictions is not None:
        actions = [line.action for line in lines]
        predictions.update(analysis.state, actions, most=game.num_actions, moves_ownership=query.moves_ownership)
    leads = predictions.score_leads if predictions else {}
    response["moveInfos"] = [
        _describe_move(game, order, line, sign, leads.get(line.action), query.line_moves)
        for order, line in enumerate(lines)
    ]
    response["rootInfo"] = _describe_root(game, job.position, analysis, sign) | _describe_lead(lines, leads, sign)
    if query.policy:
        response["policy"] = _describe_policy(game, analysis)
    if predictions is None or predictions.ownership is None:
        return response
    if query.ownership:
        response["ownership"] = _round_all(sign * predictions.ownership)
    if query.moves_ownership:
        for move, line in zip(response["moveInfos"], lines, strict=True):
            move["ownership"] = _round_all(sign * predictions.moves_ownership[line.action])
    return response


def sign_of_perspective(perspective: str, player: int) -> int:
    """1 if numbers are reported from the view of the player to move, -1 if from that of the opponent."""
    whose = {BLACK: 0, WHITE: 1}.get(perspective, player)
    return 1 if whose == player else -1


def _describe_move(
    game: Game, order: int, line: MoveAnalysis, sign: int, lead: float | None, line_moves: int
) -> Fields:
    return {
        "move": game.action_name(line.action),
        "order": order,
        "visits": line.visits,
        "edgeVisits": line.visits,
        **_describe_value(sign * line.value),
        "prior": _round(line.prior),
        **({} if lead is None else _describe_points(sign * lead)),
        "pv": [game.action_name(action) for action in line.actions[: 1 + line_moves]],
    }


def _describe_root(game: Game, position: Position, analysis: Analysis, sign: int) -> Fields:
    this, symmetric = position_hashes(game, position.state, position.player)
    return {
        "currentPlayer": "BW"[position.player],
        "visits": analysis.visits,
        **_describe_value(sign * analysis.value),
        "rawWinrate": _round((1 + sign * analysis.network_value) / 2),
        "thisHash": this,
        "symHash": symmetric,
    }


def _describe_value(value: float) -> Fields:
    """Return a value in [-1, 1]; the search gives no bounds, so the lower confidence bound is the winning chance."""
    chance = _round((1 + value) / 2)
    return {"winrate": chance, "lcb": chance, "utility": _round(value), "utilityLcb": _round(value)}


def _describe_lead(lines: Sequence[MoveAnalysis], leads: dict[int, float], sign: int) -> Fields:
    """Return the mean of the moves' leads by visits, if the network predicts them."""
    if not leads:
        return {}
    visits = np.array([line.visits for line in lines])
    return _describe_points(sign * float(np.average([leads[line.action] for line in lines], weights=visits)))


def _describe_points(lead: float) -> Fields:
    """Names under which programs look for points."""
    return dict.fromkeys(("scoreLead", "scoreMean", "scoreSelfplay"), _round(lead))


def _describe_policy(game: Game, analysis: Analysis) -> list[float]:
    """Return the network's policy, -1 for illegal moves."""
    policy = np.full(game.num_actions, -1.0)
    legal = game.legal_actions(analysis.state)
    policy[legal] = analysis.policy[legal]
    return _round_all(policy)


def position_hashes(game: Game, state: States, player: int) -> tuple[str, str]:
    """Return a name for a position (stones, points forbidden by ko, and the player to move), and one for it and all
    that are symmetric to it.
    """
    board = stones_on_board(state).astype(np.uint8)
    board[game.observe(state)[FORBIDDEN_PLANE] > 0] = FORBIDDEN
    views = [board.ravel()[points].tobytes() for points in game.point_symmetries]
    return _digest(views[0], player), _digest(min(views), player)


def _digest(board: bytes, player: int) -> str:
    return hashlib.blake2b(board + bytes([player]), digest_size=16).hexdigest().upper()


def _round(value: float) -> float:
    return round(float(value), DIGITS)


def _round_all(values: NDArray[np.floating]) -> list[float]:
    return [round(value, DIGITS) for value in values.tolist()]
