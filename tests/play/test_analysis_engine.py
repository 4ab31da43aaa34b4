"""The engine that analyses many positions, in this process, with networks of a few lines."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from keima.games import load_game
from keima.games.game import Planes
from keima.games.go.rules import KOMI_PLANE
from keima.networks.predictions import Predictions
from keima.play.analysis.engine import AnalysisEngine
from keima.play.analysis.query import QueryDefaults
from keima.play.analysis.searches import Searches

SIZE, VISITS, PARALLEL = 7, 24, 3
GAME = load_game("go", size=SIZE, komi=4.5, max_plies=490)
POINTS = SIZE * SIZE
PLAIN = {"moves": [], "rules": "tromp-taylor", "komi": 4.5, "boardXSize": SIZE, "boardYSize": SIZE}
MOVES = [["B", "D4"], ["W", "C3"], ["B", "E5"]]

pytestmark = pytest.mark.medium


def network(observations: Planes) -> tuple[Planes, Planes]:
    """A network that treats all moves alike, and expects 0.5 of any position for Black."""
    return np.zeros((len(observations), GAME.num_actions), np.float32), (0.5 * _black(observations)).astype(np.float32)


def foresee(observations: Planes) -> Predictions:
    """Say that Black wins by 3 points and owns every point to 0.25."""
    black = _black(observations)
    return Predictions(
        ownership=np.repeat(0.25 * black[:, None], POINTS, 1).astype(np.float32),
        score_leads=(3 * black).astype(np.float32),
    )


def _black(observations: Planes) -> Planes:
    """Return 1 where Black is to move, else -1: White's komi is positive."""
    return -np.sign(observations[:, KOMI_PLANE, 0, 0])


class Talk:
    """A conversation with an engine, which searches ``PARALLEL`` positions side by side."""

    def __init__(self, *, predicts: bool = True, finishes: bool = True) -> None:
        self.said, self.batches = list[dict[str, Any]](), list[int]()
        self.engine = AnalysisEngine(
            GAME,
            version="1",
            model={"name": "n"},
            searches=Searches(GAME, self._counted(network), max_batch=8, parallel=PARALLEL),
            write=lambda line: self.said.append(json.loads(line)),
            defaults=QueryDefaults(max_visits=VISITS, most_visits=1000, parallel=PARALLEL),
            predict=foresee if predicts else None,
            finishes=finishes,
        )
        self.batches.clear()

    def _counted(
        self, evaluate: Callable[[Planes], tuple[Planes, Planes]]
    ) -> Callable[[Planes], tuple[Planes, Planes]]:
        def counting(observations: Planes) -> tuple[Planes, Planes]:
            self.batches.append(len(observations))
            return evaluate(observations)

        return counting

    def say(self, **fields: object) -> None:
        """Send a line as it is."""
        assert self.engine.handle_line(json.dumps(fields), 0.0)

    def send(self, identity: str, **fields: object) -> None:
        """Send a query for analyses."""
        self.say(id=identity, **PLAIN | fields)

    def finish(self) -> list[dict[str, Any]]:
        """Return all that it says until there is no work left."""
        while self.engine.has_work:
            self.engine.advance()
        said, self.said[:] = self.said[:], []
        return said

    def answers(self, identity: str, **fields: object) -> list[dict[str, Any]]:
        self.send(identity, **fields)
        return self.finish()


def test_every_turn_gets_one_result() -> None:
    said = Talk().answers("q", moves=MOVES, analyzeTurns=[0, 1, 2, 3])
    assert sorted(each["turnNumber"] for each in said) == [0, 1, 2, 3]
    for each in said:
        assert (each["id"], each["isDuringSearch"]) == ("q", False)
        assert each["rootInfo"]["visits"] == sum(move["visits"] for move in each["moveInfos"]) == VISITS
        assert each["rootInfo"]["currentPlayer"] == "BW"[each["turnNumber"] % 2]
        assert [move["order"] for move in each["moveInfos"]] == list(range(len(each["moveInfos"])))
        assert all(move["pv"][0] == move["move"] for move in each["moveInfos"])
        assert not {"ownership", "policy"} & set(each)


def test_positions_share_the_calls_of_the_network() -> None:
    talk = Talk()
    talk.answers("q", moves=MOVES, analyzeTurns=[0, 1, 2])
    together = len(talk.batches)
    alone = 0
    for turn in range(3):
        talk.batches.clear()
        talk.answers("q", moves=MOVES, analyzeTurns=[turn])
        alone += len(talk.batches)
    assert together < alone / 2


@pytest.mark.parametrize(("whose", "signs"), [("BLACK", (1, 1)), ("WHITE", (-1, -1)), ("SIDETOMOVE", (1, -1))], ids=str)
def test_numbers_are_from_the_view_that_is_asked_for(whose: str, signs: tuple[int, int]) -> None:
    said = Talk().answers(
        "q",
        moves=MOVES[:1],
        analyzeTurns=[0, 1],
        includeOwnership=True,
        includeMovesOwnership=True,
        overrideSettings={"reportAnalysisWinratesAs": whose},
    )
    for each in said:
        sign = signs[each["turnNumber"]]
        for info in (each["rootInfo"], *each["moveInfos"]):
            assert info["winrate"] == pytest.approx(0.5 + 0.25 * sign, abs=0.05)
            assert info["scoreLead"] == info["scoreMean"] == pytest.approx(3 * sign)
        assert each["rootInfo"]["rawWinrate"] == pytest.approx(0.5 + 0.25 * sign)
        assert each["ownership"] == pytest.approx([0.25 * sign] * POINTS)
        assert each["moveInfos"][0]["ownership"] == pytest.approx([0.25 * sign] * POINTS)


def test_the_policy_is_the_networks_own_and_illegal_moves_have_none() -> None:
    policy = Talk().answers("q", moves=MOVES, includePolicy=True, allowMoves=[{"player": "W", "moves": ["A1"]}])[0][
        "policy"
    ]
    assert len(policy) == POINTS + 1 and policy.count(-1) == len(MOVES)
    assert policy[GAME.parse_action("E5")] == -1
    assert sum(share for share in policy if share > 0) == pytest.approx(1, abs=1e-3)


def test_only_allowed_moves_are_searched() -> None:
    said = Talk().answers("q", allowMoves=[{"player": "B", "moves": ["A1", "B2"], "untilDepth": 1}])
    assert {move["move"] for move in said[0]["moveInfos"]} == {"A1", "B2"}


def test_lines_are_as_long_as_wanted() -> None:
    assert {len(move["pv"]) for move in Talk().answers("q", maxVisits=200, analysisPVLen=0)[0]["moveInfos"]} == {1}


def test_a_network_that_foresees_no_points_reports_none() -> None:
    said = Talk(predicts=False).answers("q", includeOwnership=True, includeMovesOwnership=True)[0]
    assert "scoreLead" not in said["rootInfo"] and "ownership" not in said and "ownership" not in said["moveInfos"][0]


def test_higher_priorities_are_searched_first() -> None:
    talk = Talk()
    for number in range(2 * PARALLEL):
        talk.send(f"low {number}")
    talk.send("urgent", priority=1)
    order = [each["id"] for each in talk.finish()]
    assert order.index("urgent") < PARALLEL and order[-1] == f"low {2 * PARALLEL - 1}"


def test_a_search_reports_while_it_runs() -> None:
    said = Talk().answers("q", reportDuringSearchEvery=0, maxVisits=60)
    assert [each["isDuringSearch"] for each in said] == [True] * (len(said) - 1) + [False]
    visits = [each["rootInfo"]["visits"] for each in said]
    assert len(said) > 3 and visits == sorted(visits) and visits[-1] == 60


def test_a_search_ends_when_its_time_is_over() -> None:
    said = Talk().answers("q", maxVisits=1000, overrideSettings={"maxTime": 1e-6})
    assert 1 <= said[0]["rootInfo"]["visits"] < 20 and not said[0]["isDuringSearch"]


def test_searches_are_terminated_with_what_they_have_found() -> None:
    talk = Talk()
    talk.send("long", moves=MOVES, analyzeTurns=[0, 1, 2, 3], maxVisits=1000)
    talk.send("other")
    for _ in range(3):
        talk.engine.advance()
    talk.say(id="t", action="terminate", terminateId="long", turnNumbers=[0, 3])
    assert talk.said[0] == {"id": "t", "action": "terminate", "terminateId": "long", "turnNumbers": [0, 3]}
    begun, waiting = talk.said[1:]
    assert begun["turnNumber"] == 0 and begun["moveInfos"] and not begun["isDuringSearch"]
    assert waiting == {"id": "long", "turnNumber": 3, "isDuringSearch": False, "noResults": True}
    talk.say(id="t", action="terminate_all")
    assert {each["id"] for each in talk.said} == {"t", "long", "other"} and not talk.engine.has_work


def test_nothing_happens_if_nothing_is_left_to_terminate() -> None:
    talk = Talk()
    talk.say(id="t", action="terminate", terminateId="gone")
    assert talk.finish() == [{"id": "t", "action": "terminate", "terminateId": "gone"}]


def test_actions_are_echoed_with_their_answers() -> None:
    talk = Talk()
    talk.say(id="a", action="query_version")
    talk.say(id="b", action="query_models")
    talk.say(id="c", action="clear_cache", more=1)
    assert talk.said == [
        {"id": "a", "action": "query_version", "version": "1", "git_hash": "<omitted>"},
        {"id": "b", "action": "query_models", "models": [{"name": "n"}]},
        {"id": "c", "action": "clear_cache", "more": 1},
    ]


@pytest.mark.parametrize(
    ("line", "field", "identity"),
    [
        ("nonsense", None, None),
        ("[1]", None, None),
        ("{}", "id", None),
        ('{"id": "x"}', "moves", "x"),
        ('{"id": "x", "action": "dance"}', "action", "x"),
        ('{"id": "x", "action": []}', "action", "x"),
        ('{"action": "terminate_all"}', "id", None),
        ('{"id": "x", "action": "terminate"}', "terminateId", "x"),
        ('{"id": "x", "action": "terminate_all", "turnNumbers": "all"}', "turnNumbers", "x"),
    ],
)
def test_errors_are_answered_and_end_nothing(line: str, field: str | None, identity: str | None) -> None:
    talk = Talk()
    assert talk.engine.handle_line(line, 0.0)
    (said,) = talk.said
    assert said["error"] and (said.get("field"), said.get("id")) == (field, identity)
    talk.said.clear()
    assert talk.answers("q")[0]["rootInfo"]["visits"] == VISITS


def test_a_warning_comes_before_the_result() -> None:
    warning, result = Talk().answers("q", rules="japanese")
    assert (warning["field"], warning["id"]) == ("rules", "q") and "area scoring" in warning["warning"]
    assert result["rootInfo"]["visits"] == VISITS


def test_positions_have_a_name_and_symmetric_ones_share_another() -> None:
    said = Talk().answers("q", moves=[["B", "C4"]]), Talk().answers("q", moves=[["B", "D5"]])
    infos = [each[0]["rootInfo"] for each in said]
    assert infos[0]["symHash"] == infos[1]["symHash"] and infos[0]["thisHash"] != infos[1]["thisHash"]
    assert infos[0]["thisHash"] != Talk().answers("q", moves=[["W", "C4"]])[0]["rootInfo"]["thisHash"]


def test_the_end_of_the_input_waits_for_results_unless_told_otherwise() -> None:
    patient, hasty = Talk(), Talk(finishes=False)
    for talk in (patient, hasty):
        talk.send("q", moves=MOVES, analyzeTurns=[0, 1, 2, 3])
        talk.engine.close()
    assert len(patient.said) == 4 and not hasty.said


def test_results_do_not_depend_on_what_is_searched_beside_them() -> None:
    talk = Talk()
    alone = talk.answers("q", moves=MOVES, maxVisits=7)
    talk.send("q", moves=MOVES, maxVisits=7)
    talk.send("other", maxVisits=7)
    assert [each for each in talk.finish() if each["id"] == "q"] == alone
