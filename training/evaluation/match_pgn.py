"""The games of a chess benchmark as PGN."""

import time

from games import Game
from games.chess_notation import fen_of
from games.pgn import pgn_text
from training.evaluation.match import openings
from training.evaluation.match_benchmark import Match

EVENT = "Benchmark of a network"
RESULTS = {1.0: ("1-0", "0-1"), 0.5: ("1/2-1/2", "1/2-1/2"), 0.0: ("0-1", "1-0")}  # by the first player's score; with White, with Black


def match_pgn(game: Game, match: Match, round_number: int) -> str:
    """All games of a match, each from the position after its random moves."""
    starts = openings(game, len(match.scores) // 2, match.opening_plies, match.seed)
    texts = []
    for number, (score, actions) in enumerate(zip(match.scores.tolist(), match.games, strict=True)):
        black = number % 2
        tags = {
            "Event": EVENT,
            "Date": time.strftime("%Y.%m.%d"),
            "Round": f"{round_number}.{number + 1}",
            "White": match.second if black else match.first,
            "Black": match.first if black else match.second,
        }
        texts.append(pgn_text(game, actions, tags=tags, result=RESULTS[score][black], start_fen=fen_of(starts[number // 2])))
    return "".join(texts)
