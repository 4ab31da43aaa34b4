"""Chess follows its rules, including the rare ones, and writes positions and moves in the standard notations."""

import numpy as np
import pytest

from keima.games import Game, IllegalAction, load_game
from keima.games.chess.board import EN_PASSANT
from keima.games.chess.notation import START_FEN, action_of_uci, describe_ending, fen_of, position_from_fen, uci_of
from keima.games.game import States
from keima.games.perft import count_perft


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("chess")


def moves(game: Game, state: States | str, *beginnings: str) -> set[str]:
    """Return the legal moves, or only those with this prefix."""
    state = position_from_fen(game, state) if isinstance(state, str) else state
    names = {uci_of(state, action) for action in game.legal_actions(state).tolist()}
    return {name for name in names if name.startswith(beginnings)} if beginnings else names


def played(game: Game, fen: str, *names: str) -> States:
    state = position_from_fen(game, fen)
    for name in names:
        game.play(state, action_of_uci(state, name))
    return state


BOTH_CASTLE = "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1"


def test_kings_castle_to_both_sides(game: Game) -> None:
    assert moves(game, BOTH_CASTLE, "e1g1", "e1c1") == {"e1g1", "e1c1"}
    assert fen_of(played(game, BOTH_CASTLE, "e1g1", "e8c8")) == "2kr3r/8/8/8/8/8/8/R4RK1 w - - 2 2"
    assert fen_of(played(game, BOTH_CASTLE, "e1c1", "e8g8")) == "r4rk1/8/8/8/8/8/8/2KR3R w - - 2 2"


@pytest.mark.parametrize(
    ("rook", "allowed"),
    [
        ("e", set()),
        ("f", {"e1c1"}),
        ("g", {"e1c1"}),
        ("d", {"e1g1"}),
        ("c", {"e1g1"}),
        ("b", {"e1g1", "e1c1"}),
        ("h", {"e1g1", "e1c1"}),
    ],
)
def test_a_king_never_castles_out_of_through_or_into_check_but_its_rook_may_be_attacked(
    game: Game, rook: str, allowed: set[str]
) -> None:
    row = ["1"] * 8
    row["abcdefgh".index(rook)] = "r"
    assert moves(game, f"1k6/8/8/8/8/{''.join(row)}/8/R3K2R w KQ - 0 1", "e1g1", "e1c1") == allowed


def test_castling_over_a_piece_is_illegal(game: Game) -> None:
    assert moves(game, "4k3/8/8/8/8/8/8/RN2K1NR w KQ - 0 1", "e1g1", "e1c1") == set()


def test_a_king_or_rook_that_has_moved_or_been_captured_no_longer_castles(game: Game) -> None:
    assert fen_of(played(game, BOTH_CASTLE, "e1e2", "a8b8", "e2e1", "b8a8")).split()[2] == "k"
    assert fen_of(played(game, BOTH_CASTLE, "h1h8")).split()[2] == "Qq"
    assert fen_of(played(game, BOTH_CASTLE, "a1a8")).split()[2] == "Kk"


def test_a_pawn_is_captured_en_passant_at_once_or_never(game: Game) -> None:
    state = played(game, START_FEN, "e2e4", "a7a6", "e4e5", "d7d5")
    assert fen_of(state).split()[3] == "d6"
    assert "e5d6" in moves(game, state)
    assert fen_of(played(game, fen_of(state), "e5d6")) == "rnbqkbnr/1pp1pppp/p2P4/8/8/8/PPPP1PPP/RNBQKBNR b KQkq - 0 3"
    assert "e5d6" not in moves(game, played(game, fen_of(state), "h2h3", "h7h6"))


def test_en_passant_may_not_uncover_a_check_along_the_rank(game: Game) -> None:
    fen = "8/8/8/K1Pp3r/8/8/8/7k w - d6 0 1"
    assert "c5d6" not in moves(game, fen)
    assert fen_of(position_from_fen(game, fen)) == "8/8/8/K1Pp3r/8/8/8/7k w - - 0 1"


def test_en_passant_may_not_uncover_a_check_along_a_diagonal(game: Game) -> None:
    assert "e4d3" not in moves(game, "8/8/8/8/k2Pp2Q/8/8/3K4 b - d3 0 1")
    assert "e5f6" not in moves(game, "4k3/2b5/8/4Pp2/8/6K1/8/8 w - f6 0 1")
    assert "e5d6" not in moves(game, "4k3/6b1/8/3pP3/8/2K5/8/8 w - d6 0 1")


def test_a_pinned_pawn_captures_en_passant_along_its_pin(game: Game) -> None:
    assert "e5d6" in moves(game, "4k3/2b5/8/3pP3/8/6K1/8/8 w - d6 0 1")


def test_of_two_pawns_only_the_unpinned_one_captures_en_passant(game: Game) -> None:
    assert moves(game, "2r1k3/8/8/2PpP3/8/8/8/2K5 w - d6 0 1", "c5d6", "e5d6") == {"e5d6"}


def test_a_checking_pawn_can_be_captured_en_passant(game: Game) -> None:
    assert "e4d3" in moves(game, "8/8/8/2k5/3Pp3/8/8/4K3 b - d3 0 1")


def test_en_passant_does_not_answer_a_knight_s_check(game: Game) -> None:
    assert "e4d3" not in moves(game, "8/8/8/8/1k1Pp3/8/2N5/4K3 b - d3 0 1")


def test_a_pawn_promotes_to_any_of_four_pieces_ahead_and_by_capture(game: Game) -> None:
    fen = "n1n4k/1P6/8/8/8/8/8/K7 w - - 0 1"
    assert moves(game, fen, "b7") == {f"b7{target}8{piece}" for target in "abc" for piece in "qrbn"}
    for piece in "qrbn":
        assert fen_of(played(game, fen, f"b7c8{piece}")).startswith(f"n1{piece.upper()}4k/8/")
    assert fen_of(played(game, "7k/8/8/8/8/7K/1p6/2N5 b - - 0 1", "b2c1r")) == "7k/8/8/8/8/7K/8/2r5 w - - 0 2"


def test_a_pinned_pawn_does_not_promote_off_its_pin(game: Game) -> None:
    assert moves(game, "2r1b2k/3P4/8/1K6/8/8/8/8 w - - 0 1", "d7") == {f"d7e8{piece}" for piece in "qrbn"}


def test_only_the_king_answers_a_double_check(game: Game) -> None:
    assert moves(game, "4r1k1/8/8/8/8/3n4/8/R3K2R w - - 0 1") == {"e1d1", "e1d2", "e1f1"}


def test_a_king_does_not_flee_along_the_line_of_its_check(game: Game) -> None:
    assert moves(game, "7k/8/8/8/r3K3/8/8/8 w - - 0 1", "e4") == {"e4d3", "e4e3", "e4f3", "e4d5", "e4e5", "e4f5"}


def test_pinned_pieces_move_only_along_their_pins(game: Game) -> None:
    assert moves(game, "4r1k1/8/8/b7/8/2B1R3/8/4K3 w - - 0 1", "c3") == {"c3a5", "c3b4", "c3d2"}
    assert moves(game, "4r1k1/8/8/b7/8/2B1R3/8/4K3 w - - 0 1", "e3") == {"e3e2", *(f"e3e{row}" for row in range(4, 9))}
    assert moves(game, "4r2k/8/8/8/8/8/4N3/4K3 w - - 0 1", "e2") == set()


def test_the_position_with_the_most_moves_has_218(game: Game) -> None:
    assert len(moves(game, "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")) == 218


@pytest.mark.parametrize(
    ("fen", "depth", "count"),
    [  # of M. Sedlak's collection, those in which neither side can run out of pieces
        ("3k4/3p4/8/K1P4r/8/8/8/8 b - - 0 1", 6, 1134888),
        ("r3k2r/1b4bq/8/8/8/8/7B/R3K2R w KQkq - 0 1", 4, 1274206),
        ("r3k2r/8/3Q4/8/8/5q2/8/R3K2R b KQkq - 0 1", 4, 1720476),
        ("8/8/2k5/5q2/5n2/8/5K2/8 b - - 0 1", 4, 23527),
    ],
)
def test_positions_that_have_tripped_up_other_programs_have_the_right_number_of_moves(
    game: Game, fen: str, depth: int, count: int
) -> None:
    assert count_perft(game, depth, position_from_fen(game, fen)) == count


def test_checkmate_wins_for_the_player_who_gave_it(game: Game) -> None:
    state = played(game, START_FEN, "f2f3", "e7e5", "g2g4", "d8h4")
    assert game.terminal(state)
    assert describe_ending(state) == "checkmate"
    assert game.returns(state).tolist() == [-1, 1]
    assert game.returns(played(game, START_FEN, "e2e4", "f7f6", "d2d4", "g7g5", "d1h5")).tolist() == [1, -1]


def test_stalemate_is_a_draw(game: Game) -> None:
    state = played(game, "k7/8/8/1Q6/8/8/8/7K w - - 0 1", "b5b6")
    assert game.terminal(state)
    assert describe_ending(state) == "stalemate"
    assert game.returns(state).tolist() == [0, 0]


SHUFFLE = ("g1f3", "g8f6", "f3g1", "f6g8")


def test_the_third_repetition_ends_the_game_and_the_fifth_without_claims() -> None:
    for claim_draws, times, name in ((True, 3, "threefold repetition"), (False, 5, "fivefold repetition")):
        game = load_game("chess", claim_draws=claim_draws)
        state = played(game, START_FEN, *SHUFFLE * (times - 1))
        assert describe_ending(state) == name
        assert game.terminal(state)
        assert game.legal_actions(state).tolist() == []
        assert not game.terminal(played(game, START_FEN, *(SHUFFLE * (times - 1))[:-1]))


def test_a_position_only_repeats_with_the_same_castling_and_en_passant_rights(game: Game) -> None:
    fen = "r3k3/8/8/8/8/8/8/4K2R w Kq - 0 1"
    kings = ("e1e2", "e8e7", "e2e1", "e7e8")  # after these moves neither side can castle any more
    assert game.terminal(played(game, fen.replace("Kq", "-"), *kings * 2))
    assert not game.terminal(played(game, fen, *kings * 2, "e1e2"))
    assert game.terminal(played(game, fen, *kings * 2, "e1e2", "e8e7"))
    knights = ("b1c3", "g8f6", "c3b1", "f6g8")
    state = played(game, START_FEN, "e2e4", "a7a6", "e4e5", "d7d5", *knights * 2)
    assert not game.terminal(state)
    assert game.terminal(played(game, START_FEN, "e2e4", "a7a6", "e4e5", "d7d6", *knights * 2))


def test_fifty_moves_without_progress_end_the_game_and_75_without_claims() -> None:
    for claim_draws, plies, name in ((True, 100, "fifty moves"), (False, 150, "75 moves")):
        game = load_game("chess", claim_draws=claim_draws)
        fen = f"8/8/4k3/8/8/3QK3/8/8 w - - {plies - 2} 80"
        assert not game.terminal(played(game, fen, "d3d4"))
        state = played(game, fen, "d3d4", "e6e7")
        assert describe_ending(state) == name
        assert game.terminal(state)


def test_checkmate_takes_precedence_over_the_fifty_moves_and_the_longest_game(game: Game) -> None:
    fen = "k7/8/1K6/8/8/8/8/7R w - - 99 90"
    assert game.returns(played(game, fen, "h1h8")).tolist() == [1, -1]
    short = load_game("chess", max_plies=1)
    assert short.returns(played(short, fen, "h1h8")).tolist() == [1, -1]
    assert describe_ending(played(short, fen.replace("99", "0"), "h1h7")) == "length"


@pytest.mark.parametrize(
    ("board", "drawn"),
    [
        *(
            ("k7/8/8/8/8/8/8/K7", True),
            ("k7/8/8/8/8/8/8/KN6", True),
            ("k7/8/8/8/8/8/8/KB6", True),
            ("kb6/8/8/8/8/8/8/KB6", False),
        ),
        *(
            ("k1b5/8/8/8/8/8/8/KB6", True),
            ("k7/8/8/8/8/8/8/KNN5", False),
            ("kn6/8/8/8/8/8/8/KN6", False),
            ("k7/8/8/8/8/8/8/KBB5", False),
        ),
        *(
            ("k7/8/8/8/8/8/P7/K7", False),
            ("k7/8/8/8/8/8/8/K6R", False),
            ("k7/8/8/8/8/8/8/KB1B4", True),
            ("kb6/8/8/8/8/8/8/KN6", False),
        ),
    ],
)
def test_a_game_that_neither_side_can_win_is_drawn(game: Game, board: str, drawn: bool) -> None:
    state = position_from_fen(game, f"{board} w - - 0 1")
    assert game.terminal(state) == drawn
    assert (describe_ending(state) == "insufficient material") == drawn


def test_both_players_see_the_board_from_their_own_side(game: Game) -> None:
    state = game.initial_state()
    names = [game.action_name(action) for action in game.legal_actions(state).tolist()]
    white = game.observe(state)
    game.play(state, game.parse_action("e2e4"))
    assert [game.action_name(action) for action in game.legal_actions(state).tolist()] == names
    assert uci_of(state, game.parse_action("e2e4")) == "e7e5"
    black = game.observe(state)
    assert np.array_equal(black[:6], white[:6])
    assert np.argwhere(black[6]).tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [1, 5], [1, 6], [1, 7], [3, 4]]
    assert white[112].all()
    assert not black[112].any()


def test_actions_have_the_documented_indices(game: Game) -> None:
    square = {name: 8 * (8 - int(name[1])) + "abcdefgh".index(name[0]) for name in ("e2", "g1", "b7", "a1", "h8", "e1")}
    assert game.parse_action("e2e4") == 64 * 1 + square["e2"]  # north, two squares
    assert game.parse_action("a1h8") == 64 * (7 * 1 + 6) + square["a1"]  # northeast, seven
    assert game.parse_action("e1c1") == 64 * (7 * 6 + 1) + square["e1"]  # west, two
    assert game.parse_action("g1h3") == 64 * 56 + square["g1"]
    assert game.parse_action("g1f3") == 64 * 63 + square["g1"]
    assert game.parse_action("b7b8") == square["b7"]
    assert [game.parse_action(name) // 64 for name in ("b7b8n", "b7c8n", "b7a8n", "b7b8b", "b7a8r")] == [
        64,
        65,
        66,
        67,
        72,
    ]


def test_en_passant_is_visible_in_the_previous_position(game: Game) -> None:
    fen = "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 2"
    state = position_from_fen(game, fen)
    assert state[EN_PASSANT] != 0
    before = game.observe(state)[14:28]
    assert np.argwhere(before[6]).tolist() == [[1, 3]]
    assert np.argwhere(before[0]).tolist() == [[3, 4]]
    assert game.hash(state) != game.hash(position_from_fen(game, fen.replace("d6", "-")))


def test_moves_are_read_as_uci_writes_them(game: Game) -> None:
    state = game.initial_state()
    assert uci_of(state, action_of_uci(state, "g1f3")) == "g1f3"
    with pytest.raises(ValueError, match="'Nf3' is not a move as UCI writes it, such as e2e4"):
        action_of_uci(state, "Nf3")
    with pytest.raises(IllegalAction, match="e2e5 is not legal in rnbqkbnr/pppppppp"):
        action_of_uci(state, "e2e5")
    with pytest.raises(IllegalAction):
        action_of_uci(position_from_fen(game, "7k/1P6/8/8/8/8/8/K7 w - - 0 1"), "b7b8")
    with pytest.raises(ValueError, match="'hello' is not a move: type two squares"):
        game.parse_action("hello")


@pytest.mark.parametrize(
    ("fen", "why"),
    [
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w", "it has 2 fields and not six"),
        ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP w KQkq - 0 1", "the board has 7 rows and not eight"),
        ("rnbqkbnr/pppppppp/8/8/9/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "there is no piece '9'"),
        ("rnbqkbnr/pppppppp/8/8/71P/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", r"row 4 \(71P\) does not have eight squares"),
        ("rnbq1bnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w - - 0 1", "Black has 0 kings"),
        ("rnbqkbnr/pppppppp/8/8/8/P7/PPPPPPPP/RNBQKBNR w - - 0 1", "White has 17 pieces, 9 of them pawns"),
        ("Pk6/8/8/8/8/8/8/K7 w - - 0 1", "there is a pawn on the first or the last row"),
        ("k7/8/8/8/8/8/8/K7 x - - 0 1", "the player to move is w or b, not 'x'"),
        ("k7/8/8/8/8/8/8/K7 w KX - 0 1", "castling is some of KQkq or -, not 'KX'"),
        ("k7/8/8/8/8/8/8/K7 w KK - 0 1", "castling is some of KQkq or -, not 'KK'"),
        ("k7/8/8/8/8/8/8/4K3 w K - 0 1", "K may not castle: king and rook are not both at home"),
        ("k7/8/8/8/8/8/8/K7 w - e9 0 1", "a square or -, not 'e9'"),
        ("k7/8/8/8/4P3/8/8/K7 w - e3 0 1", "no pawn has just passed over e3"),
        ("k7/8/8/8/4P3/8/4P3/K7 b - e3 0 1", "no pawn has just passed over e3"),
        ("k7/8/8/8/8/8/8/K7 w - - x 1", "'x 1' are not the plies since"),
        ("k7/8/8/8/8/8/8/K7 w - - 101 1", "there have been 101 plies without"),
        ("k7/8/8/8/8/8/8/K7 w - - 0 0", "moves are numbered from 1"),
        ("k7/8/8/8/8/8/8/K6r b - - 0 1", "the player who is not to move is in check"),
    ],
)
def test_an_invalid_position_is_refused_with_the_reason(game: Game, fen: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        position_from_fen(game, fen)


def test_the_last_two_fields_are_optional_and_other_games_have_no_fen(game: Game) -> None:
    assert fen_of(position_from_fen(game, "k7/8/8/8/8/8/8/K6R b - -")) == "k7/8/8/8/8/8/8/K6R b - - 0 1"
    with pytest.raises(ValueError, match="FEN is for chess, not for go"):
        position_from_fen(load_game("go"), START_FEN)


@pytest.mark.parametrize(
    "options", [{"max_plies": 0}, {"max_plies": 17_698}, {"max_plies": True}, {"claim_draws": 1}, {"history": 1}]
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        load_game("chess", **options)


def test_the_board_is_rendered_for_people(game: Game) -> None:
    assert (
        game.render(played(game, START_FEN, "e2e4", "f7f5", "d1h5"))
        == """\
  a b c d e f g h
8 r n b q k b n r 8
7 p p p p p . p p 7
6 . . . . . . . . 6
5 . . . . . p . Q 5
4 . . . . P . . . 4
3 . . . . . . . . 3
2 P P P P . P P P 2
1 R N B . K B N R 1
  a b c d e f g h
Black to move, in check"""
    )


def test_the_mirror_image_of_a_game_castles_to_both_sides(game: Game) -> None:
    white_short = ["g1f3", "g8f6", "g2g3", "g7g6", "f1g2", "f8g7", "e1g1", "e8g8"]
    white_long = ["d2d4", "d7d5", "c1f4", "c8f5", "b1c3", "b8c6", "d1d2", "d8d7", "e1c1", "e8c8"]
    points, actions = game.point_symmetries[1], game.action_symmetries[1]
    for moves_of_game in (white_short, white_long):
        state, mirrored = game.mirrored_initial_states()
        for name in moves_of_game:
            action = action_of_uci(state, name)
            assert np.array_equal(game.legal_actions(mirrored), np.sort(actions[game.legal_actions(state)]))
            game.play(state, action)
            game.play(mirrored, int(actions[action]))
            planes = game.observe(state).reshape(-1, 64)
            assert np.array_equal(game.observe(mirrored).reshape(-1, 64), planes[:, points])
        assert fen_of(state).split()[2] == "-"
