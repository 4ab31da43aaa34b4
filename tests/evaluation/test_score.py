"""Playing one-player games for the score."""

from dataclasses import replace

import numpy as np
import pytest

from keima.config.sections.evaluation import EvaluationSettings
from keima.config.sections.search import SearchSettings
from keima.evaluation.match import RandomPlayer, SearchPlayer
from keima.evaluation.score import play_for_score, summarize_scores
from keima.evaluation.strength import check_evaluation_settings
from keima.games import load_game
from keima.games.game import Actions, Planes, States
from keima.search.move_search import Search
from tests.one_player import SMALL


class Recorder:
    """Plays at random and records its requests."""

    def __init__(self) -> None:
        self.player, self.asked = RandomPlayer(SMALL, 1), [np.zeros(0)]

    def choose(self, states: States) -> Actions:
        assert all(SMALL.current_player(state) == 0 and not SMALL.terminal(state) for state in states)
        self.asked.append(states.copy())
        return self.player.choose(states)


def lopsided(observations: Planes) -> tuple[np.ndarray, np.ndarray]:
    """Return a network that prefers some directions, and expects nothing."""
    return np.tile(np.float32([0.0, 1.0, 2.0, -1.0]), (len(observations), 1)), np.zeros(len(observations), np.float32)


def searching() -> SearchPlayer:
    return SearchPlayer(Search(SMALL, lopsided, SearchSettings(forced_playouts=False), num_simulations=8, num_trees=16))


def test_games_are_played_to_their_ends() -> None:
    player = Recorder()
    played = play_for_score(SMALL, player, games=30, seed=1)
    assert len(played.scores) == len(played.reached) == len(played.plies) == 30
    assert played.moves == sum(len(states) for states in player.asked)
    # Two new tiles before the first move, and one after each.
    assert played.plies.sum() == 30 * 2 + 2 * played.moves
    assert (played.scores > 0).all() and (played.reached >= 8).all()


def test_where_a_game_ends_another_begins() -> None:
    player = Recorder()
    played = play_for_score(SMALL, player, games=30, seed=1, side_by_side=7)
    sizes = [len(states) for states in player.asked[1:]]
    assert max(sizes) == 7
    assert sizes == sorted(sizes, reverse=True), "only when there are no more games to begin are there fewer at a time"
    assert (played.scores > 0).all()


def test_a_seed_gives_the_same_games_again() -> None:
    first, second, other = (play_for_score(SMALL, searching(), games=12, seed=seed) for seed in (1, 1, 2))
    assert first.scores.tolist() == second.scores.tolist()
    assert first.plies.tolist() == second.plies.tolist()
    assert first.scores.tolist() != other.scores.tolist()


def test_chance_depends_only_on_the_number_of_the_game() -> None:
    """A player without randomness plays the same game alone and among others."""

    class Eager:
        def choose(self, states: States) -> Actions:
            return np.array([SMALL.legal_actions(state)[0] for state in states], np.int32)

    together = play_for_score(SMALL, Eager(), games=6, seed=1)
    alone = [play_for_score(SMALL, Eager(), games=1, seed=1, first=number).scores[0] for number in range(6)]
    assert together.scores.tolist() == alone
    assert len(set(alone)) > 1


def test_a_watcher_can_stop_it() -> None:
    seen = []

    def watch(ended: int, moves: int) -> None:
        seen.append((ended, moves))
        if moves >= 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play_for_score(SMALL, RandomPlayer(SMALL, 1), games=10, seed=1, on_progress=watch)
    assert seen[0] == (0, 0)
    assert seen == sorted(seen)


def test_the_figures_are_those_of_the_games() -> None:
    played = play_for_score(SMALL, RandomPlayer(SMALL, 1), games=20, seed=1)
    report = summarize_scores(SMALL, played)
    assert report is not None
    assert (report.games, report.best) == (20, played.scores.max())
    assert [part.milestone for part in report.milestones] == [512, 1024]


def test_a_two_player_game_is_not_played_for_the_score() -> None:
    game = load_game("tic_tac_toe")
    with pytest.raises(ValueError, match="tic_tac_toe is a game for 2"):
        play_for_score(game, RandomPlayer(game, 1), games=1, seed=1)


@pytest.mark.parametrize("wanted", [{"rating_games": 10}, {"gating": "sprt"}, {"perfect_play": True}])
def test_settings_of_two_player_games_are_refused_for_one_player(wanted: dict[str, object]) -> None:
    settings = EvaluationSettings.model_validate({"rating_games": 0} | wanted)
    with pytest.raises(ValueError, match=rf"evaluation\.{next(iter(wanted))}: one-player games such as twenty48"):
        check_evaluation_settings(SMALL, settings)


def test_a_score_is_refused_for_two_player_games() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.score_games: tic_tac_toe is not a one-player game"):
        check_evaluation_settings(load_game("tic_tac_toe"), EvaluationSettings(score_games=10))


def test_measures_that_a_game_allows_are_accepted() -> None:
    check_evaluation_settings(SMALL, EvaluationSettings(rating_games=0, score_games=10))
    check_evaluation_settings(SMALL, EvaluationSettings(every=0))
    check_evaluation_settings(load_game("tic_tac_toe"), EvaluationSettings(perfect_play=True, gating="sprt"))


def test_what_is_only_for_two_players_is_refused_for_three() -> None:
    three = replace(load_game("tic_tac_toe"), num_players=3)
    check_evaluation_settings(three, EvaluationSettings(rating_games=30))
    with pytest.raises(ValueError, match=r"evaluation\.gating: tic_tac_toe is not a two-player game"):
        check_evaluation_settings(three, EvaluationSettings(gating="sprt"))
    with pytest.raises(ValueError, match=r"evaluation\.score_games"):
        check_evaluation_settings(three, EvaluationSettings(score_games=10))
