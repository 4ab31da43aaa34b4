"""The process that plays and thinks with one network for ``/play``: a line of JSON for each question and each answer.

    python -m keima.web.engine models/go9.safetensors

It keeps no games: each question brings its game along, so that none is lost when the process ends. It exits when
its input ends, or after some minutes without a question. It computes with one thread, and once it has loaded its
network it runs at low priority.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keima.base.disk_words import error_text
from keima.base.reports.formats import game_title
from keima.base.system.priority import begin_session
from keima.evaluation.match_worker import make_match_search_settings
from keima.games import Game
from keima.games.game import States
from keima.networks.architectures.auxiliary_heads import add_score_to_value, make_predictor
from keima.networks.inference.evaluator import Evaluator, use_threads
from keima.play.network_loader import load_network_from_model
from keima.play.session import GameSession, move_name, player_name
from keima.report.games.drawn_board import board_kind, draw_board, is_drop_game, points_of_move
from keima.report.games.game_view import count_final_score, predict_final_score
from keima.report.games.saved_game import export_session
from keima.search.analysis import Analysis, AnalysisTrees, MoveAnalysis, make_analysis_settings
from keima.search.move_search import Search
from keima.web.limits import MOST_SECONDS, MOST_SIMULATIONS

MOST_NODES = 20_000  # simulations of a search that is limited by time
LEAVES, VISITS_A_LEAF = 8, 8  # the most positions in a call of the network; fewer in a small tree
MOVES_SHOWN = 12  # of a search or a policy
LINE_SHOWN = 8  # moves of a principal line
TRIAL = 32  # simulations that measure the speed in a one-player game
IDLE_SECONDS = 600.0

Answer = dict[str, Any]


class NetworkThinker:
    """A network with its search.

    Args:
        path: of its model.

    Raises:
        ValueError, OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        found = load_network_from_model(path)
        self.game, self.version = found.game, found.model.model_version
        network = found.model.build(found.game)
        self.predict = make_predictor(network) if found.game.won_by_area else None
        self._run_search = found.search
        scoring, self._score_utility = add_score_to_value(network, found.game, found.search.match_score_utility)
        self.evaluator = Evaluator(scoring, found.game, max_batch=LEAVES)
        self._analysis: Analysis | None = None
        self._search: tuple[int, Search] | None = None
        self._seconds_each = 0.0  # of a simulation in a one-player game

    def warm_up(self) -> None:
        """Think about the start, so that all that is compiled, or read from the cache, is there."""
        self.think(GameSession(self.game, person=0), simulations=2 * LEAVES, seconds=None)

    def analyse_without_search(self, session: GameSession) -> Answer:
        """Return what the network thinks of a position without search: its policy, and what each player can expect."""
        game, state = self.game, session.state
        logits, values = self.evaluator(game.observe(state)[None])
        legal = game.legal_actions(state)
        shares = softmax(logits[0, legal])
        order = np.argsort(-shares, kind="stable")
        player = game.current_player(state)
        moves = [describe_move(game, state, int(legal[i]), float(shares[i])) for i in order[:MOVES_SHOWN]]
        value = values[0, 0] if self._score_utility else values[0]
        return {"moves": moves, "expects": expectations_by_player(game, player, value)}

    def think(self, session: GameSession, *, simulations: int | None, seconds: float | None) -> tuple[int, Answer]:
        """Return the best action, and the moves that search considered."""
        began = time.monotonic()
        alone = self.game.num_players == 1
        if alone:
            action, found = self._think_alone(session, self._simulations_within(session, simulations, seconds))
        else:
            action, found = self._think_against(session, simulations or MOST_NODES, seconds or MOST_SECONDS)
        return action, found | {"ply": len(session.moves), "seconds": round(time.monotonic() - began, 2)}

    def _think_against(self, session: GameSession, simulations: int, seconds: float) -> tuple[int, Answer]:
        game, state, ends = self.game, session.state, time.monotonic() + seconds
        if self._analysis is None:
            self._analysis = Analysis(
                AnalysisTrees(
                    game,
                    self.evaluator,
                    make_analysis_settings(self._run_search, leaves=LEAVES, lookahead=True),
                    max_simulations=MOST_NODES,
                    score_utility=self._score_utility,
                )
            )
        analysis = self._analysis
        analysis.begin(state)
        while not analysis.is_finished and analysis.visits < simulations:
            leaves = max(1, min(LEAVES, analysis.visits // VISITS_A_LEAF, simulations - analysis.visits))
            analysis.run_simulations(leaves)
            if time.monotonic() >= ends:
                break
        lines, total = analysis.best_moves(MOVES_SHOWN), max(analysis.visits, 1)
        moves = [self._describe_line(state, line, line.visits / total) for line in lines]
        return lines[0].action, {"simulations": analysis.visits, "moves": moves}

    def _describe_line(self, state: States, line: MoveAnalysis, share: float) -> Answer:
        """Return a move with its principal line; its value is for the player to move."""
        after, names = state.copy(), list[str]()
        for action in line.actions[:LINE_SHOWN]:
            names.append(move_name(self.game, after, action))
            self.game.play(after, action)
        return describe_move(self.game, state, line.action, share) | {
            "visits": line.visits,
            "value": line.value,
            "line": names,
        }

    def _think_alone(self, session: GameSession, simulations: int) -> tuple[int, Answer]:
        if self._search is None or self._search[0] != simulations:
            settings = make_match_search_settings(self._run_search)
            search = Search(self.game, self.evaluator, settings, num_simulations=simulations, num_trees=1)
            self._search = simulations, search
        began = time.monotonic()
        found = self._search[1].find(session.state[None])
        self._seconds_each = (time.monotonic() - began) / simulations
        visits, total = found.visits[0], max(int(found.visits[0].sum()), 1)
        order = [int(action) for action in np.argsort(-visits, kind="stable") if visits[action] > 0][:MOVES_SHOWN]
        moves = [
            describe_move(self.game, session.state, action, visits[action] / total) | {"visits": int(visits[action])}
            for action in order
        ]
        return int(found.actions[0]), {"simulations": simulations, "moves": moves, "value": float(found.values[0])}

    def _simulations_within(self, session: GameSession, simulations: int | None, seconds: float | None) -> int:
        """Return the simulations of a search in a one-player game, whose time is known from the last one."""
        if simulations is not None:
            return simulations
        if not self._seconds_each:
            self._think_alone(session, TRIAL)  # compiles
            self._think_alone(session, TRIAL)
        wanted = int((seconds or 0.0) / max(self._seconds_each, 1e-6))
        return min(max(2 ** (wanted.bit_length() - 1) if wanted else TRIAL, TRIAL), MOST_SIMULATIONS)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return logits ``[n]`` as shares."""
    weights = np.exp(logits.astype(np.float64) - logits.max(initial=-np.inf))
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def describe_move(game: Game, state: States, action: int, share: float) -> Answer:
    """Return a move with its share, for ``boards.js``."""
    return {
        "action": action,
        "name": move_name(game, state, action),
        "points": points_of_move(game, state, action),
        "share": share,
    }


def expectations_by_player(game: Game, mover: int, value: Any) -> list[float]:
    """Return what each player can expect, given the network's value for ``mover``: the return, or the points still to
    come.
    """
    if game.num_players == 1:
        return [float(value)]
    if game.num_players == 2:
        return [float(value), -float(value)] if mover == 0 else [-float(value), float(value)]
    found = [0.0] * game.num_players
    for step, each in enumerate(np.asarray(value).tolist()):
        found[(mover + step) % game.num_players] = each
    return found


def expected_ownership(thinking: NetworkThinker, session: GameSession) -> Answer:
    """Return, for a game won by area, who owns or will own each point, in percent, and player 0's lead in points."""
    game, state = thinking.game, session.state
    if not game.won_by_area:
        return {}
    if game.terminal(state):
        ownership, lead = count_final_score(game, state)
        return {"ownership": list(ownership), "score_lead": lead}
    if thinking.predict is None:
        return {}
    expected, expected_lead = predict_final_score(game, state, thinking.predict(game.observe(state)[None]))
    found: Answer = {"ownership": list(expected)} if expected else {}
    return found | ({} if expected_lead is None else {"score_lead": expected_lead})


def describe_game(thinking: NetworkThinker, session: GameSession, thought: Answer | None) -> Answer:
    """Return all that the page shows of a game."""
    game, state, over = thinking.game, session.state, session.is_over
    drawn = draw_board(game, state)
    legal = [] if over else game.legal_actions(state).tolist()
    before, last = session.previous_state, session.last_action
    return {
        "title": game_title(game.name, game.options),
        "model": thinking.version,
        "position": asdict(drawn) | {"kind": board_kind(game), "players": game.num_players},
        "players": [player_name(game, player) for player in range(game.num_players)],
        "person": session.person,
        "to_move": None if over else game.current_player(state),
        "drops": is_drop_game(game),
        "legal": [
            {"action": each, "name": move_name(game, state, each), "points": points_of_move(game, state, each)}
            for each in legal
        ],
        "last": () if before is None or last is None else points_of_move(game, before, last),
        "moves": session.moves,
        "over": over,
        "result": session.result() if over else "",
        "score": float(game.returns(state)[0]) if game.num_players == 1 else None,
        "opinion": None if over else thinking.analyse_without_search(session),
        "thought": thought,
        "saves_as": {"go": "SGF", "chess": "PGN"}.get(game.name, "text"),
    } | expected_ownership(thinking, session)


def answer_or_error(thinking: NetworkThinker, question: Answer) -> Answer:
    """Return the game after a command, or an error in words."""
    try:
        return answer_question(thinking, question)
    except (ValueError, OSError) as error:
        return {"error": error_text(error)}


def answer_question(thinking: NetworkThinker, question: Answer) -> Answer:
    """Return the game after a command.

    Raises:
        ValueError, OSError: the command is not possible.
    """
    given = {name: question[name] for name in ("person", "actions", "resigned")}
    if given["person"] is not None and given["person"] >= thinking.game.num_players:
        raise ValueError(f"this game has {thinking.game.num_players} players")
    session = GameSession(thinking.game, **given)
    if question["do"] == "save":
        name, text = export_session(session, f"Keima, model {thinking.version}")
        return {"name": name, "text": text}
    thought = execute_command(thinking, session, question)
    return {"actions": session.actions, "resigned": session.resigned, "view": describe_game(thinking, session, thought)}


def execute_command(thinking: NetworkThinker, session: GameSession, question: Answer) -> Answer | None:
    """Execute a command; returns what search has found, if it was asked."""
    match question["do"]:
        case "undo":
            session.undo()
        case "resign" if session.person is not None:
            session.resigned = session.person
        case "move" if not session.is_over:
            session.play(question["action"])
        case "answer" | "hint" if not session.is_over:
            action, thought = thinking.think(session, simulations=question["simulations"], seconds=question["seconds"])
            if question["do"] == "answer":
                session.play(action)
            return thought
    return None


def answer_questions(path: Path) -> None:
    """Answer until the input ends or no question comes for long. The first line says whether the model can be read."""
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")

    def say(answer: Answer) -> None:
        json.dump(answer, protocol)
        protocol.write("\n")
        protocol.flush()

    with contextlib.redirect_stdout(sys.stderr):
        try:
            thinking = NetworkThinker(path)
            thinking.warm_up()
        except (ValueError, OSError) as error:
            say({"error": error_text(error)})
            return
        say({})
        begin_session()  # only now: people wait for the network, once
        while select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            line = sys.stdin.readline()
            if not line:
                return
            say(answer_or_error(thinking, json.loads(line)))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    use_threads(1)
    answer_questions(Path(sys.argv[1]))
