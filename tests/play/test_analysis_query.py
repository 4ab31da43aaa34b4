"""Queries for analyses: what they ask for, and what is wrong with them."""

from typing import Any

import numpy as np
import pytest

from keima.games import load_game
from keima.games.go.rules import score_lead
from keima.games.go.setup import stones_on_board
from keima.play.analysis.query import READ, Query, QueryDefaults, parse_query
from keima.play.analysis.syntax import QueryError, parse_line

SIZE = 7
GAME = load_game("go", size=SIZE, komi=4.5, max_plies=490)
DEFAULTS = QueryDefaults(max_visits=500, most_visits=10_000, parallel=4)
PLAIN = {"id": "q", "moves": [], "rules": "tromp-taylor", "komi": 4.5, "boardXSize": SIZE, "boardYSize": SIZE}
MOVES = [["B", "D4"], ["W", "C3"], ["B", "E5"]]


def query_of(**fields: object) -> Query:
    return parse_query(GAME, PLAIN | fields, DEFAULTS)


def refused(**fields: object) -> tuple[str | None, str]:
    """Return the field that is wrong, and what is said of it."""
    with pytest.raises(QueryError) as caught:
        query_of(**fields)
    return caught.value.field, str(caught.value)


def test_a_query_that_says_nothing_else_is_of_the_last_turn() -> None:
    query = query_of(moves=MOVES)
    assert [position.turn for position in query.positions] == [3]
    assert (query.max_visits, query.perspective, query.report_seconds) == (500, "BLACK", None)
    assert not (query.ownership or query.moves_ownership or query.policy or query.warnings)
    assert query.positions[0].player == 1 and query.positions[0].allowed is None


def test_every_turn_is_the_position_after_so_many_moves() -> None:
    positions = query_of(moves=MOVES, analyzeTurns=[0, 1, 3]).positions
    assert [int((stones_on_board(each.state) > 0).sum()) for each in positions] == [0, 1, 3]
    assert [each.player for each in positions] == [0, 1, 1]


def test_stones_and_the_first_player_begin_a_game() -> None:
    position = query_of(initialStones=[["B", "A1"], ["W", "G7"], ["W", "(1,0)"]], initialPlayer="W").positions[0]
    board = stones_on_board(position.state)
    assert (board[-1, 0], board[0, -1], board[0, 1]) == (1, 2, 2), "coordinates count from the upper left corner"
    assert position.player == 1


def test_the_first_move_says_who_begins_and_moves_may_be_out_of_turn() -> None:
    assert query_of(moves=[["W", "D4"], ["W", "C3"]], analyzeTurns=[0]).positions[0].player == 1
    assert (stones_on_board(query_of(moves=[["W", "D4"], ["W", "C3"]]).positions[0].state) == 2).sum() == 2


def test_two_passes_do_not_end_an_analysis() -> None:
    position = query_of(moves=[["B", "pass"], ["W", "pass"]]).positions[0]
    assert not GAME.terminal(position.state) and position.player == 0


def test_handicap_stones_count_as_the_rules_prescribe() -> None:
    stones = {"initialStones": [["B", "C3"], ["B", "E5"]], "initialPlayer": "W", "komi": 0.5}
    leads = {
        (rules, bonus): score_lead(query_of(**stones, rules=rules, **bonus_field).positions[0].state)
        for rules in ("tromp-taylor", "chinese")
        for bonus, bonus_field in ((None, {}), ("N-1", {"whiteHandicapBonus": "N-1"}), ("0", {"whiteHandicapBonus": 0}))
    }
    area = SIZE * SIZE
    assert leads["tromp-taylor", None] == leads["chinese", "0"] == area - 0.5
    assert leads["chinese", None] == area - 2.5 and leads["tromp-taylor", "N-1"] == area - 1.5


def test_without_a_komi_it_is_that_of_the_networks_training() -> None:
    without = {key: value for key, value in PLAIN.items() if key != "komi"}
    assert score_lead(parse_query(GAME, without, DEFAULTS).positions[0].state) == -4.5


def test_rules_that_are_not_played_are_replaced_with_a_warning() -> None:
    for rules in ("Japanese", "stone_scoring", {"scoring": "TERRITORY", "tax": "SEKI", "friendlyPassOk": True}):
        warnings = query_of(rules=rules).warnings
        assert warnings and {field for field, _ in warnings} == {"rules"}
    for rules in ("Chinese", "new zealand", "AGA", {"ko": "SIMPLE", "scoring": "AREA"}):
        assert not query_of(rules=rules).warnings
    assert refused(rules="checkers")[0] == "rules"
    assert refused(rules=7)[0] == "rules"


def test_moves_are_avoided_or_allowed_for_their_player_in_the_position() -> None:
    avoided = {"player": "B", "moves": ["D4", "pass"], "untilDepth": 1}
    others = {"player": "W", "moves": ["C3"], "untilDepth": 1}
    left = query_of(avoidMoves=[avoided, others]).positions[0].allowed
    assert left is not None
    assert set(range(50)) - set(left) == {GAME.parse_action("D4"), SIZE * SIZE}
    only = query_of(allowMoves=[avoided, others]).positions[0].allowed
    assert only == tuple(sorted((GAME.parse_action("D4"), SIZE * SIZE)))
    assert not query_of(avoidMoves=[avoided]).warnings
    assert query_of(avoidMoves=[avoided | {"untilDepth": 9}]).warnings[0][0] == "avoidMoves"
    assert refused(allowMoves=[avoided], avoidMoves=[avoided])[0] in ("allowMoves", "avoidMoves")
    assert refused(avoidMoves=[["B", "D4"]])[0] == "avoidMoves"


def test_priorities_are_those_of_the_turns() -> None:
    assert [each.priority for each in query_of(moves=MOVES, analyzeTurns=[1, 2], priority=5).positions] == [5, 5]
    assert [each.priority for each in query_of(moves=MOVES, analyzeTurns=[1, 2], priorities=[-1, 7]).positions] == [
        -1,
        7,
    ]
    assert refused(moves=MOVES, analyzeTurns=[1, 2], priorities=[1])[0] == "priorities"


def test_settings_that_mean_something_here_are_heeded_and_others_named() -> None:
    query = query_of(overrideSettings={"reportAnalysisWinratesAs": "SIDETOMOVE", "maxTime": 2, "wideRootNoise": 0.04})
    assert (query.perspective, query.max_seconds) == ("SIDETOMOVE", 2.0)
    assert query.warnings == [("overrideSettings", "these have no meaning here and are ignored: wideRootNoise")]
    assert refused(overrideSettings={"reportAnalysisWinratesAs": "GREEN"})[0] == "overrideSettings"
    assert query_of(rootPolicyTemperature=1.5).warnings[0][0] == "rootPolicyTemperature"
    assert not query_of(includePVVisits=False).warnings


def test_more_visits_than_fit_are_cut_with_a_warning() -> None:
    query = query_of(maxVisits=10_000_000)
    assert query.max_visits == 10_000 and query.warnings[0][0] == "maxVisits"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": 7}, "id"),
        ({"moves": [["B", "D4"], ["W", "D4"]]}, "moves"),
        ({"moves": [["B", "Z9"]]}, "moves"),
        ({"moves": [["G", "D4"]]}, "moves"),
        ({"moves": "D4"}, "moves"),
        ({"moves": ["D4"]}, "moves"),
        ({"moves": [["B", ["D4"]]]}, "moves"),
        ({"initialStones": [["B", "D4"], ["W", "D4"]]}, "initialStones"),
        ({"initialStones": [["B", "pass"]]}, "initialStones"),
        ({"initialStones": [["B", "A1"], ["W", "A2"], ["W", "B1"]]}, "initialStones"),
        ({"initialPlayer": None}, "initialPlayer"),
        ({"komi": 0.3}, "komi"),
        ({"komi": 1000}, "komi"),
        ({"komi": "7"}, "komi"),
        ({"komi": 10**400}, "komi"),
        ({"whiteHandicapBonus": "2N"}, "whiteHandicapBonus"),
        ({"boardXSize": 19}, "boardXSize"),
        ({"boardYSize": 9.5}, "boardYSize"),
        ({"analyzeTurns": [1]}, "analyzeTurns"),
        ({"analyzeTurns": [True]}, "analyzeTurns"),
        ({"analyzeTurns": 0}, "analyzeTurns"),
        ({"maxVisits": 0}, "maxVisits"),
        ({"maxVisits": "500"}, "maxVisits"),
        ({"includePolicy": 1}, "includePolicy"),
        ({"analysisPVLen": -1}, "analysisPVLen"),
        ({"priority": 1.5}, "priority"),
        ({"reportDuringSearchEvery": -1}, "reportDuringSearchEvery"),
        ({"overrideSettings": []}, "overrideSettings"),
        ({"overrideSettings": {"maxTime": 0}}, "overrideSettings"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], field: str) -> None:
    assert refused(**fields)[0] == field


@pytest.mark.parametrize("missing", ["moves", "rules", "boardXSize", "boardYSize"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(QueryError, match=missing) as caught:
        parse_query(GAME, {key: value for key, value in PLAIN.items() if key != missing}, DEFAULTS)
    assert caught.value.field == missing


def test_programs_look_for_the_words_illegal_move() -> None:
    assert refused(moves=[["B", "D4"], ["W", "D4"]])[1].startswith("Illegal move 2, W D4")


def test_a_long_value_is_shortened_in_the_error() -> None:
    assert len(refused(initialPlayer="B" * 10_000)[1]) < 200


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "7", '{"id": NaN}', '{"komi": 1e999}', "[" * 100_000, '{"a":' + "9" * 9999 + "}"]
)
def test_a_line_that_is_not_an_object_is_refused(line: str) -> None:
    with pytest.raises(QueryError):
        parse_line(line)


def test_a_position_is_not_changed_by_later_turns() -> None:
    first, _ = query_of(moves=MOVES, analyzeTurns=[0, 3]).positions
    assert np.array_equal(stones_on_board(first.state), np.zeros((SIZE, SIZE)))


STRANGE: list[Any] = [None, True, -1, 0, 3.5, 10**30, "", "pass", "(99,99)", [], [[]], [None], [["B"]], {}, {"a": []}]


@pytest.mark.parametrize("field", sorted(READ | {"anything"}))
def test_no_value_of_a_field_does_more_than_refuse_the_query(field: str) -> None:
    for value in [*STRANGE, [{"player": "B", "moves": [None], "untilDepth": 1}], [["B", "D4"]] * 2000]:
        try:
            query_of(**{field: value})
        except QueryError as error:
            assert error.field and len(str(error)) < 300
