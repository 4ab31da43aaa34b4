"""The games of a benchmark in standard formats: chess as PGN, Go as SGF."""

import time

from keima.data.imports.imported_games import state_after_actions
from keima.evaluation.match import draw_opening_moves, play_opening_moves
from keima.games import Game
from keima.games.go.sgf import score_text, sgf_text
from keima.play.arena.match_benchmark import Match

EVENT = "Benchmark of a network"
# By the first player's score: playing White, playing Black.
RESULT_TEXTS = {
    1.0: ("1-0", "0-1"),
    0.5: ("1/2-1/2", "1/2-1/2"),
    0.0: ("0-1", "1-0"),
}
OPENING_END = "The random moves end here."


def match_to_text(game: Game, match: Match, round_number: int) -> str:
    """Return all games of a match as text. Chess games start after their random moves, Go games include them."""
    written = match_to_pgn if game.name == "chess" else match_to_sgf
    return written(game, match, round_number)


def match_to_pgn(game: Game, match: Match, round_number: int) -> str:
    """Return all games of a chess match as PGN, each from the position after its random moves."""
    from keima.games.chess.notation import fen_of  # imported here, because it compiles chess
    from keima.games.chess.pgn import pgn_text

    starts = play_opening_moves(game, draw_opening_moves(game, len(match.scores) // 2, match.opening_plies, match.seed))
    texts = []
    for number, (result, actions) in enumerate(zip(match.scores.tolist(), match.games, strict=True)):
        black = number % 2
        white, other = players_of_game(match, number)
        date = time.strftime("%Y.%m.%d")
        tags = {"Event": EVENT, "Date": date, "Round": f"{round_number}.{number + 1}", "White": white, "Black": other}
        texts.append(
            pgn_text(
                game, actions, tags=tags, result=RESULT_TEXTS[result][black], start_fen=fen_of(starts[number // 2])
            )
        )
    return "".join(texts)


def match_to_sgf(game: Game, match: Match, round_number: int) -> str:
    """Return all games of a Go match as SGF, with their random moves, and the board's score as result."""
    from keima.games.go.rules import score_lead

    opened = draw_opening_moves(game, len(match.scores) // 2, match.opening_plies, match.seed).tolist()
    plies = len(opened[0]) if opened else 0  # fewer than asked for in games that ended earlier
    comments = [*[""] * plies, OPENING_END] if plies else []
    texts = []
    for number, moves in enumerate(match.games):
        actions = [*opened[number // 2], *moves]
        black, white = players_of_game(match, number)
        date = time.strftime("%Y-%m-%d")
        tags = {"EV": EVENT, "DT": date, "RO": f"{round_number}.{number + 1}", "PB": black, "PW": white}
        texts.append(
            sgf_text(
                game,
                actions,
                tags=tags,
                result=score_text(score_lead(state_after_actions(game, actions))),
                comments=comments,
            )
        )
    return "".join(texts)


def players_of_game(match: Match, number: int) -> tuple[str, str]:
    """Return the players of a game of a match, in order of moving."""
    return (match.second, match.first) if number % 2 else (match.first, match.second)
