"""A game that a person has played, as a file: Go as SGF, chess as PGN, others as a list of moves."""

from datetime import UTC, datetime

from keima.games.go.sgf import score_text, sgf_text
from keima.play.session import GameSession, player_name


def export_session(session: GameSession, network: str) -> tuple[str, str]:
    """Return the name and the text of the file.

    Args:
        network: what it is called.
    """
    game = session.game
    names = [network if session.person != player else "You" for player in range(game.num_players)]
    today = datetime.now(UTC)
    if game.name == "go":
        tags = {"PB": names[0], "PW": names[1], "DT": f"{today:%Y-%m-%d}"}
        return "game.sgf", sgf_text(game, session.actions, tags=tags, result=session_sgf_result(session))
    if game.name == "chess":
        from keima.games.chess.pgn import pgn_text  # compiles chess

        tags = {"White": names[0], "Black": names[1], "Date": f"{today:%Y.%m.%d}"}
        return "game.pgn", pgn_text(game, session.actions, tags=tags, result=session_pgn_result(session))
    heading = [f"{player_name(game, player)}: {name}" for player, name in enumerate(names)] if len(names) > 1 else []
    moves = [f"{number}. {move}" for number, move in enumerate(session.moves, 1)]
    return "game.txt", "\n".join([*heading, *moves, session.result() if session.is_over else "unfinished", ""])


def session_sgf_result(session: GameSession) -> str:
    """Return the result as SGF writes it."""
    if session.resigned is not None:
        return f"{'W' if session.resigned == 0 else 'B'}+R"
    if not session.is_over:
        return "?"
    from keima.games.go.rules import score_lead  # compiles Go

    return score_text(score_lead(session.state))


def session_pgn_result(session: GameSession) -> str:
    """Return the result as PGN writes it."""
    if session.resigned is not None:
        return "0-1" if session.resigned == 0 else "1-0"
    if not session.is_over:
        return "*"
    won = session.game.returns(session.state)[0]
    return "1-0" if won > 0 else "0-1" if won < 0 else "1/2-1/2"
