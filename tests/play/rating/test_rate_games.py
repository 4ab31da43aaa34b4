"""Which games a rating plays next, and that they are neither repeated nor lost."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.play.arena.match_benchmark import Entrant
from keima.play.arena.players import GtpSpec, MctsSpec, NetworkSpec, RandomSpec
from keima.play.arena.slices import SliceFailed
from keima.play.engines.gtp_client import RESIGNED
from keima.play.rating import rate_games
from keima.play.rating.fit import Points
from keima.play.rating.game_cache import GameCache
from keima.play.rating.rate_games import LadderMatch, LadderResult, RungGames, choose_batch, rate_on_ladder
from keima.play.rating.rungs import Rung
from tests.small_run import saved_model

GAME = load_game("tic_tac_toe")


def rung(name: str, elo: float | None, spec: Any = RandomSpec(), margin: float = 0.0) -> Rung:  # noqa: B008
    return Rung(entrant=Entrant(name=name, spec=spec), elo=elo, margin=margin)


def row(elo: float | None, wins: int = 0, losses: int = 0, seconds: float = 0.0, name: str = "") -> RungGames:
    return RungGames(rung=rung(name or str(elo), elo), points=Points(wins=wins, losses=losses), seconds=seconds)


def test_the_first_games_are_in_the_middle_and_then_near_the_estimate() -> None:
    empty = [row(elo) for elo in (0, 500, 1000, 1500, 2000)]
    first = choose_batch(empty, seconds=600, processes=2)
    assert first and first.rung.name == "1000" and first.games == 4
    empty[2] = row(1000, losses=4, seconds=4)
    second = choose_batch(empty, seconds=600, processes=2)
    assert second and second.rung.name in {"0", "500"}


def test_hopeless_rungs_are_not_played() -> None:
    table = [row(0), row(1000, wins=10, losses=10, seconds=20), row(2500)]
    chosen = choose_batch(table, seconds=600, processes=2)
    assert chosen and chosen.rung.name == "1000" and chosen.games == 20


def test_rungs_of_unknown_strength_get_a_few_games_near_the_end_and_no_more() -> None:
    table = [row(1000, wins=10, losses=10, seconds=20), row(None, name="new")]
    chosen = choose_batch(table, seconds=600, processes=2)
    assert chosen and chosen.rung.name == "1000", "they say nothing of the network"
    table[0] = row(1000, wins=300, losses=300, seconds=500)
    chosen = choose_batch(table, seconds=600, processes=2)
    assert chosen and (chosen.rung.name, chosen.games) == ("new", 4)
    table[1] = row(None, wins=2, losses=2, seconds=1, name="new")
    chosen = choose_batch(table, seconds=600, processes=2)
    assert chosen and chosen.rung.name == "1000"


def test_without_an_engine_of_known_strength_nothing_is_played() -> None:
    table = [row(1000, name="slow"), row(None, name="new")]
    assert choose_batch(table, seconds=600, processes=2, closed={"slow"}) is None


def test_of_two_even_opponents_the_faster_one_plays() -> None:
    table = [row(1000, 10, 10, 20, name="fast"), row(1000, 10, 10, 200, name="slow")]
    chosen = choose_batch(table, seconds=600, processes=2)
    assert chosen and chosen.rung.name == "fast"


def test_no_games_begin_when_the_time_is_up_or_not_enough_for_them() -> None:
    assert choose_batch([row(1000, 10, 10, 601)], seconds=600, processes=2) is None
    assert choose_batch([row(1000, 10, 10, 580)], seconds=600, processes=2) is None  # 4 games take 116 seconds
    assert choose_batch([row(1000, 10, 10, 20)], seconds=600, processes=2) is not None


def test_many_processes_do_not_end_a_rating_early() -> None:
    """The cost of a game is known from few games, which few processes have played."""
    batch = choose_batch([row(1000, 2, 2, 32)], seconds=600, processes=192)
    assert batch and 2 <= batch.games <= 64


def make_match(folder: Path, rungs: list[Rung], *, seconds: float = 1.0, **options: Any) -> LadderMatch:
    model = folder / "a.safetensors"
    if not model.exists():
        saved_model(model, GAME)
    network = NetworkSpec(model=model, search=SearchSettings(algorithm="gumbel"), num_simulations=2)
    cache = GameCache(GAME, network, seed=1, opening_plies=2, folder=folder / "cache")
    return LadderMatch(
        game=GAME,
        network=network,
        rungs=rungs,
        cache=cache,
        opening_plies=2,
        seed=1,
        seconds=seconds,
        processes=1,
        **options,
    )


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch takes REPORT_SECONDS, also on a busy machine."""
    monkeypatch.setattr(rate_games, "time", SimpleNamespace(monotonic=lambda: 0.0))


def count_games(result: LadderResult) -> dict[str, int]:
    return {each.rung.name: each.points.games for each in result.games}


@pytest.mark.medium
@pytest.mark.usefixtures("standing_clock")
def test_a_longer_call_continues_and_a_repeated_one_plays_nothing(tmp_path: Path) -> None:
    rungs = [rung("random", 0), rung("mcts", 300, MctsSpec(playouts=50))]
    first = rate_on_ladder(make_match(tmp_path, rungs))
    assert first.rating and sum(count_games(first).values()) >= 4
    told = list[Any]()
    again = rate_on_ladder(make_match(tmp_path, rungs, on_progress=told.append))
    assert count_games(again) == count_games(first) and again.rating == first.rating and not told
    longer = rate_on_ladder(make_match(tmp_path, rungs, seconds=2.0))
    assert sum(count_games(longer).values()) > sum(count_games(first).values())


@pytest.mark.medium
@pytest.mark.usefixtures("standing_clock")
def test_an_engine_that_fails_is_left_out_with_the_reason(tmp_path: Path) -> None:
    broken = rung("broken", 100, GtpSpec(command=("/no/such/engine",), move_seconds=1.0))
    result = rate_on_ladder(make_match(tmp_path, [rung("random", 0), broken]))
    assert list(count_games(result)) == ["random"] and result.rating
    (skipped,) = result.skipped
    assert skipped.name == "broken" and "/no/such/engine cannot be started" in skipped.reason


def fail_after_a_batch(monkeypatch: pytest.MonkeyPatch, error: BaseException | type[BaseException]) -> None:
    played = rate_games.play_pairs
    left = [True, True]  # the warm-up, and one batch

    def play(*arguments: Any, **options: Any) -> Any:
        if not left:
            raise error
        left.pop()
        return played(*arguments, **options)

    monkeypatch.setattr(rate_games, "play_pairs", play)


def test_games_that_an_engine_played_before_it_failed_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_after_a_batch(monkeypatch, SliceFailed("the engine does not answer"))
    result = rate_on_ladder(make_match(tmp_path, [rung("random", 0)], seconds=60.0))
    assert count_games(result) == {"random": 4} and result.rating
    assert [each.reason for each in result.skipped] == ["the engine does not answer"]


def test_batches_that_fail_take_their_time_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, list[str]()

    def play(game: Any, network: Any, opponent: Entrant, **options: Any) -> Any:
        nonlocal now
        if options["games"] > GAME.num_players:  # no warm-up
            asked.append(opponent.name)
            now += 40.0
            raise SliceFailed("the engine does not answer")

    monkeypatch.setattr(rate_games, "play_pairs", play)
    monkeypatch.setattr(rate_games, "time", SimpleNamespace(monotonic=lambda: now))
    rungs = [rung(str(elo), elo) for elo in (0, 100, 200, 300)]
    result = rate_on_ladder(make_match(tmp_path, rungs, seconds=60.0))
    assert len(asked) == 2 and result.rating is None


def test_an_engine_that_resigns_is_not_judged_by_the_games_that_it_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after_a_batch(monkeypatch, SliceFailed(f"asked for move 9: {RESIGNED}"))
    result = rate_on_ladder(make_match(tmp_path, [rung("random", 0)], seconds=60.0))
    assert not result.games and "switch its resignation off" in result.skipped[0].reason


def test_ctrl_c_gives_the_result_so_far_without_the_unfinished_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_after_a_batch(monkeypatch, KeyboardInterrupt)
    result = rate_on_ladder(make_match(tmp_path, [rung("random", 0)], seconds=60.0))
    assert result.interrupted and count_games(result) == {"random": 4} and result.rating
