"""The benchmark of two-player games, with its own processes."""

from pathlib import Path

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.evaluation.match import make_opening_states
from keima.games import GAMES, Game, load_game
from keima.games.chess.pgn import PgnGame, read_pgn
from keima.games.go.sgf import SgfGame, read_sgf
from keima.play.arena import slices
from keima.play.arena.ladder import (
    build_ladder,
    find_program,
    make_go_entrants,
    make_stockfish_spec,
    select_entrants,
)
from keima.play.arena.match_benchmark import Entrant, Match, Tally, compute_ratings, play_pairs
from keima.play.arena.match_slice import MatchJob, play_match_job
from keima.play.arena.match_text import match_to_text
from keima.play.arena.players import (
    AlphaBetaSpec,
    GreedySpec,
    GtpSpec,
    MctsSpec,
    NetworkSpec,
    RandomSpec,
)
from keima.play.arena.slices import SliceFailed
from tests.play.bad_engines import program

CHESS, TIC_TAC_TOE = load_game("chess", max_plies=60), load_game("tic_tac_toe")
RANDOM = Entrant(name="random", spec=RandomSpec())
GREEDY = Entrant(name="greedy", spec=GreedySpec())
DEPTH_2 = Entrant(name="depth-2", spec=AlphaBetaSpec(depth=2))


@pytest.mark.medium
def test_the_same_seed_and_processes_give_the_same_games() -> None:
    told: list[Tally] = []
    first, again, other = (
        play_pairs(
            TIC_TAC_TOE, RANDOM, RANDOM, games=10, opening_plies=1, seed=seed, processes=2, on_progress=told.append
        )
        for seed in (1, 1, 2)
    )
    assert first.games == again.games != other.games
    assert len(first.games) == len(first.scores) == 10
    result = first.result
    assert result.wins + result.draws + result.losses == 10
    assert told[-1].ended == 10 and told[-1].moves == sum(map(len, other.games))


@pytest.mark.medium
def test_the_better_player_wins_and_the_results_agree_with_the_games() -> None:
    match = play_pairs(CHESS, DEPTH_2, RANDOM, games=8, opening_plies=4, seed=1, processes=1)
    assert match.score > 0.5 and match.interval[0] < match.score <= match.interval[1]
    for number, moves in enumerate(match.games):
        state = make_opening_states(CHESS, 4, 4, 1)[number // 2]
        for action in moves:
            CHESS.play(state, action)
        assert CHESS.terminal(state)
        assert (np.sign(CHESS.returns(state)[number % 2]) + 1) / 2 == match.scores[number]
    assert match.mean_plies == np.mean([4 + len(moves) for moves in match.games])
    assert match.move_seconds[0] > match.move_seconds[1] > 0
    assert match.as_dict()["wins"] == match.result.wins


@pytest.mark.medium
@pytest.mark.slow
def test_chess_games_are_written_as_other_programs_read_them() -> None:
    match = play_pairs(CHESS, GREEDY, RANDOM, games=4, opening_plies=3, seed=2, processes=1)
    games = list(read_pgn(match_to_text(CHESS, match, 7).splitlines(keepends=True)))
    assert len(games) == 4
    for number, game in enumerate(games):
        assert isinstance(game, PgnGame), game
        assert tuple(game.actions.tolist()) == match.games[number]
        assert (game.tags["White"], game.tags["Round"]) == (("greedy", "random")[number % 2], f"7.{number + 1}")
        white = match.scores[number] if number % 2 == 0 else 1 - match.scores[number]
        assert game.result == {1.0: "1-0", 0.5: "1/2-1/2", 0.0: "0-1"}[white]


@pytest.mark.medium
def test_go_games_are_written_with_their_openings_as_other_programs_read_them(tmp_path: Path) -> None:
    go = load_game("go", size=5, komi=3)
    match = play_pairs(
        go, RANDOM, Entrant(name="other", spec=RandomSpec()), games=4, opening_plies=3, seed=2, processes=1
    )
    (tmp_path / "games.sgf").write_text(match_to_text(go, match, 1), encoding="utf-8")
    games = list(read_sgf(tmp_path / "games.sgf"))
    assert len(games) == 4
    for number, game in enumerate(games):
        assert isinstance(game, SgfGame), game
        assert (game.size, game.komi) == (5, 3)
        actions = [action for _, action in game.moves]
        assert tuple(actions[3:]) == match.games[number]
        state = go.initial_state()
        for action in actions:
            go.play(state, action)
        assert go.terminal(state)
        won = match.scores[number] if number % 2 == 0 else 1 - match.scores[number]
        assert game.result[0] == {1.0: "B", 0.5: "0", 0.0: "W"}[won]


@pytest.mark.medium
def test_an_engine_plays_a_whole_match() -> None:
    path = find_program("stockfish")
    if path is None:
        pytest.skip("Stockfish is not installed (Debian: apt-get install stockfish)")
    stockfish = Entrant(name="stockfish", spec=make_stockfish_spec(path, 1700, movetime=None, nodes=500))
    match = play_pairs(CHESS, stockfish, RANDOM, games=2, opening_plies=2, seed=3, processes=1)
    assert match.result.wins >= 1 and match.result.losses == 0


@pytest.mark.medium
def test_gnu_go_plays_a_whole_match_which_our_rules_decide_and_which_can_be_replayed() -> None:
    game = load_game("go", size=5, komi=0.5)
    if find_program("gnugo") is None:
        pytest.skip("GNU Go is not installed (Debian: apt-get install gnugo)")
    (gnu_go,) = make_go_entrants(game, ["gnugo:1"])
    match, again = (play_pairs(game, gnu_go, RANDOM, games=4, opening_plies=2, seed=3, processes=1) for _ in range(2))
    assert match.result.wins >= 3
    assert match.games == again.games
    for number, moves in enumerate(match.games):
        state = make_opening_states(game, 2, 2, 3)[number // 2]
        for action in moves:
            game.play(state, action)
        assert (game.returns(state)[number % 2] > 0) == (match.scores[number] == 1)


@pytest.mark.medium
def test_the_end_of_a_process_is_explained(tmp_path: Path) -> None:
    broken = Entrant(
        name="network",
        spec=NetworkSpec(model=tmp_path / "no.model", search=SearchSettings(), num_simulations=2),
    )
    with pytest.raises(SliceFailed, match="No such file"):
        play_pairs(TIC_TAC_TOE, broken, RANDOM, games=2, opening_plies=0, seed=1, processes=1)


@pytest.mark.medium
def test_if_one_engine_fails_the_others_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "END_SECONDS", 60.0)  # a process that is killed leaves its engine
    first, pids = tmp_path / "first", tmp_path / "pids"
    engine = program(
        tmp_path,
        "read line",
        f"echo $$ >> {pids}",
        f"mkdir {first} 2>/dev/null || exec sleep 300",
        f"until [ $(wc -l < {pids}) -ge 2 ]; do sleep 0.05; done",
        "exit 3",
    )
    broken = Entrant(name="broken", spec=GtpSpec(command=(str(engine),), move_seconds=1.0))
    with pytest.raises(SliceFailed, match="exit code 3"):
        play_pairs(load_game("go", size=5), broken, RANDOM, games=4, opening_plies=0, seed=1, processes=2)
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in started)


def match_of(first: str, second: str, wins: int, losses: int) -> Match:
    scores = np.array([1.0] * wins + [0.0] * losses)
    return Match(
        first=first,
        second=second,
        players=2,
        seed=1,
        opening_plies=0,
        scores=scores,
        games=((),) * len(scores),
        move_seconds=(0.0, 0.0),
        seconds=0.0,
    )


def test_games_among_the_opponents_show_how_far_apart_they_are() -> None:
    mine = [match_of("network", "random", 20, 0), match_of("network", "greedy", 0, 20)]
    close = compute_ratings([*mine, match_of("greedy", "random", 12, 8)], "random")
    far = compute_ratings([*mine, match_of("greedy", "random", 20, 0)], "random")
    assert close["random"].elo == 0
    assert close["greedy"].elo < far["greedy"].elo
    assert compute_ratings(mine, "random")["greedy"].margin > far["greedy"].margin


def test_the_ladder_consists_of_players_of_the_game_and_names_are_checked() -> None:
    assert [rung.name for rung in build_ladder(TIC_TAC_TOE)] == ["random", "mcts:100", "mcts:1000"]
    rungs = build_ladder(CHESS)
    assert [rung.name for rung in rungs] == ["random", "greedy", "depth-1", "depth-2", "depth-3"]
    assert [rung.name for rung in select_entrants(rungs, ["depth-2", "random"], "chess")] == ["random", "depth-2"]
    with pytest.raises(ValueError, match=r"^there is no 'gready' here; there are random, greedy"):
        select_entrants(rungs, ["gready"], "chess")
    for name, game, reason in (
        ("gnugo:10", "chess", "GNU Go plays go, and this network plays chess; there are random, greedy"),
        ("pachi:1000", "chess", "Pachi plays go, and this network plays chess"),
        ("stockfish-1700", "go", "Stockfish plays chess, and this network plays go; there are random"),
        ("stockfish-1700", "chess", "there is no 'stockfish-1700' here"),
    ):
        with pytest.raises(ValueError, match=f"^{reason}"):
            select_entrants(rungs, [name], game)


def test_opponents_that_know_only_the_rules_play_every_game_for_two() -> None:
    connect_four, go = load_game("connect_four"), load_game("go", size=5)
    named = ["mcts:1000", "alphabeta:2", "random", "mcts:50", "alphabeta:10"]
    for game in (connect_four, go):
        rungs = select_entrants(build_ladder(game, named), named, game.name)
        assert [rung.name for rung in rungs] == ["random", "alphabeta:2", "alphabeta:10", "mcts:50", "mcts:1000"]
    assert [rung.name for rung in build_ladder(go)] == ["random"]
    (deep,) = select_entrants(build_ladder(CHESS, ["alphabeta:4"]), ["alphabeta:4"], "chess")
    assert deep.spec == AlphaBetaSpec(depth=4)


@pytest.mark.parametrize(
    ("game", "name", "reason"),
    [
        (TIC_TAC_TOE, "alphabeta:4", r"alphabeta:4: .*\(final_score\), and tic_tac_toe has none: use mcts:1000"),
        (TIC_TAC_TOE, "mcts", "there is no 'mcts' in tic_tac_toe: give mcts:PLAYOUTS with a number from 1 to 1000000"),
        (TIC_TAC_TOE, "mcts:0", "there is no 'mcts:0'"),
        (TIC_TAC_TOE, "mcts:1000001", "there is no 'mcts:1000001'"),
        (load_game("connect_four"), "alphabeta:100", ".*give alphabeta:DEPTH with a number from 1 to 99"),
        (CHESS, "alphabeta:9", ".*give alphabeta:DEPTH with a number from 1 to 8"),
    ],
)
def test_an_opponent_that_cannot_play_is_refused_with_the_remedy(game: Game, name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        build_ladder(game, [name])


@pytest.mark.medium
def test_search_without_learning_plays_whole_matches_that_can_be_played_again() -> None:
    game = load_game("connect_four")
    alpha_beta = Entrant(name="alphabeta:3", spec=AlphaBetaSpec(depth=3))
    mcts = Entrant(name="mcts:200", spec=MctsSpec(playouts=200))
    by_depth, by_playouts, again = (
        play_pairs(game, strong, RANDOM, games=20, opening_plies=2, seed=4, processes=1)
        for strong in (alpha_beta, mcts, mcts)
    )
    assert by_depth.score > 0.8 and by_playouts.score > 0.8
    assert by_playouts.games == again.games


@pytest.mark.medium
def test_a_slice_of_a_game_of_chance_is_played_by_those_who_weigh_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAMES, "dice_race", "tests.games.dice_race")
    line = play_match_job(
        MatchJob(
            game="dice_race",
            options={},
            first=MctsSpec(playouts=200),
            second=RandomSpec(),
            match_pairs=50,
            first_pair=10,
            pairs=40,
            opening_plies=2,
            seed=6,
        )
    )
    assert line.complete and line.wins + line.draws + line.losses == 80
    assert line.wins > 1.2 * line.losses
