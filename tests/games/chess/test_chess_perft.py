"""Chess has exactly the published numbers of moves in six positions (https://www.chessprogramming.org/Perft_Results)."""

import pytest

from keima.games import load_game
from keima.games.chess.notation import START_FEN, position_from_fen
from keima.games.perft import count_perft

POSITIONS = {
    START_FEN: [20, 400, 8902, 197281, 4865609, 119060324],
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1": [48, 2039, 97862, 4085603, 193690690],
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1": [14, 191, 2812, 43238, 674624, 11030083, 178633661],
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1": [6, 264, 9467, 422333, 15833292, 706045033],
    "rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8": [44, 1486, 62379, 2103487, 89941194],
    "r4rk1/1pp1qppp/p1np1n2/2b1p1B1/2B1P1b1/P1NP1N2/1PP1QPPP/R4RK1 w - - 0 10": [46, 2079, 89890, 3894594, 164075551],
}
FAST = 5_000_000  # leaves that are counted in every run of the tests


def mirrored(fen: str) -> str:
    """Return the same position with the colors exchanged."""
    placed, mover, castling, passing, *counters = fen.split()
    return " ".join(
        [
            "/".join(reversed(placed.split("/"))).swapcase(),
            "b" if mover == "w" else "w",
            castling.swapcase(),
            passing,
            *counters,
        ]
    )


@pytest.mark.parametrize(("fen", "counts"), POSITIONS.items())
def test_the_tree_has_exactly_the_published_number_of_leaves(fen: str, counts: list[int]) -> None:
    game = load_game("chess")
    for position in (fen, mirrored(fen)):
        state = position_from_fen(game, position)
        few = [count for count in counts if count <= FAST]
        assert [count_perft(game, depth, state) for depth in range(1, len(few) + 1)] == few


@pytest.mark.slow
@pytest.mark.parametrize(("fen", "counts"), POSITIONS.items())
def test_the_tree_has_exactly_the_published_number_of_leaves_to_depth_five_and_beyond(
    fen: str, counts: list[int]
) -> None:
    game = load_game("chess")
    assert len(counts) >= 5
    for depth, count in enumerate(counts, 1):
        assert count_perft(game, depth, position_from_fen(game, fen)) == count
