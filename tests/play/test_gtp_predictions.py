"""The Go engine's predictions of the end of the game, with real networks and without a program around it."""

import re
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn

from keima.games import load_game
from keima.games.go.rules import score_lead
from keima.games.go.setup import with_player
from keima.networks.architectures.auxiliary_heads import make_predictor
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.networks.predictions import Predict
from keima.play.gtp.engine import GtpEngine
from keima.play.gtp.predictions import MOVES_PER_UPDATE, PositionPredictions
from keima.play.gtp.raw_evaluation import format_raw_evaluation, parse_symmetries
from keima.play.gtp.syntax import GtpError
from keima.play.thinking import Thinker

GO = load_game("go", size=5, komi=2.5)


def network(*, ownership: bool, score: bool) -> nn.Module:
    torch.manual_seed(1)
    return build_network(GO, blocks=1, channels=8, predict_ownership=ownership, predict_score=score).eval()


def predicting(*, ownership: bool = True, score: bool = True) -> Predict:
    predict = make_predictor(network(ownership=ownership, score=score))
    assert predict is not None
    return predict


def test_points_are_those_of_the_position_after_a_move_from_its_player_s_view() -> None:
    predict, state = predicting(), GO.initial_state()
    GO.play(state, 12)
    found, here = PositionPredictions(GO, predict), predict(GO.observe(state)[None])
    found.update(state, [0, 3])
    assert here.ownership is not None and found.ownership is not None
    assert np.array_equal(found.ownership, here.ownership[0])
    for action in (0, 3):
        after = state.copy()
        GO.play(after, action)
        said = predict(GO.observe(after)[None]).score_leads
        assert said is not None and found.score_leads[action] == pytest.approx(-said[0], abs=1e-5)


def test_a_few_moves_are_evaluated_each_time_and_none_twice() -> None:
    asked, predict = list[int](), predicting()
    found = PositionPredictions(GO, lambda observations: (asked.append(len(observations)), predict(observations))[1])  # type: ignore[func-returns-value]
    for _ in range(5):
        found.update(GO.start, range(20))
    assert asked == [1, MOVES_PER_UPDATE, MOVES_PER_UPDATE, 4] and len(found.score_leads) == 20
    other = GO.initial_state()
    GO.play(other, 12)
    found.update(other, [0])
    assert asked[4:] == [1, 1] and list(found.score_leads) == [0]


def test_a_game_that_a_pass_would_end_is_counted() -> None:
    state, found = GO.initial_state(), PositionPredictions(GO, predicting())
    for move in ("C3", "pass", "B2", "pass"):
        GO.play(state, GO.parse_action(move))
    found.update(state, [25])  # Black, who owns the whole board, also passes
    end = state.copy()
    GO.play(end, 25)
    assert found.score_leads == {25: score_lead(end)} == {25: 22.5}
    state = GO.initial_state()
    for move in ("C3", "A1", "pass"):
        GO.play(state, GO.parse_action(move))
    found.update(state, [25])
    assert found.score_leads == {25: 2.5}, "White has as many points, and the komi"


def test_a_network_that_predicts_no_points_is_not_asked_for_them() -> None:
    found = PositionPredictions(GO, predicting(score=False))
    found.update(GO.start, range(20))
    assert found.score_leads == {} and found.ownership is not None
    found = PositionPredictions(GO, predicting(ownership=False))
    found.update(GO.start, range(3))
    assert len(found.score_leads) == 3 and found.ownership is None


def test_moves_have_an_ownership_of_their_own_if_it_is_wanted() -> None:
    predict, state = predicting(score=False), GO.initial_state()
    found = PositionPredictions(GO, predict)
    found.update(state, [0, 12], moves_ownership=True)
    after = state.copy()
    GO.play(after, 12)
    said = predict(GO.observe(after)[None]).ownership
    assert said is not None and found.moves_ownership[12] == pytest.approx(-said[0], abs=1e-5)
    assert set(found.moves_ownership) == {0, 12} and found.score_leads == {}


def numbers_after(text: str, name: str, count: int) -> list[float]:
    """Return the numbers that follow a name in the text of a raw evaluation."""
    words = text.split()
    start = words.index(name) + 1
    return [float(word) for word in words[start : start + count]]


def test_a_raw_evaluation_is_turned_back_from_the_symmetry_that_the_network_saw() -> None:
    """The same position, and its mirror image under each symmetry, are one to the network."""
    evaluate, predict = Evaluator(network(ownership=True, score=True), GO, device="cpu", max_batch=4), predicting()
    state = GO.initial_state()
    for move in ("C4", "B2"):
        GO.play(state, GO.parse_action(move))
    for symmetry in range(8):
        mirrored = GO.initial_state()
        for move in ("C4", "B2"):
            GO.play(mirrored, int(GO.action_symmetries[symmetry][GO.parse_action(move)]))
        turned = format_raw_evaluation(GO, state, symmetry, evaluate, predict)
        plain = format_raw_evaluation(GO, mirrored, 0, evaluate, predict)
        for name in ("whiteWin", "whiteLead", "policyPass"):
            assert numbers_after(turned, name, 1) == pytest.approx(numbers_after(plain, name, 1), abs=2e-3)
        for name in ("policy", "whiteOwnership"):
            here, there = (np.array(numbers_after(text, name, 25)) for text in (turned, plain))
            assert here[GO.point_symmetries[symmetry]] == pytest.approx(there, abs=2e-3, nan_ok=True)


def test_a_raw_evaluation_is_white_s_whoever_is_to_move() -> None:
    evaluate = Evaluator(network(ownership=False, score=False), GO, device="cpu", max_batch=4)
    for state in (GO.initial_state(), with_player(GO.initial_state(), 1)):
        value = float(evaluate(GO.observe(state)[None])[1][0])
        text = format_raw_evaluation(GO, state, 0, evaluate, None)
        white = value if GO.current_player(state) == 1 else -value
        assert numbers_after(text, "whiteWin", 1) == pytest.approx([(1 + white) / 2], abs=1e-5)
        assert "whiteLead" not in text and "whiteOwnership" not in text


@pytest.mark.parametrize("word", ["8", "-1", "some", ""])
def test_other_symmetries_are_refused(word: str) -> None:
    with pytest.raises(GtpError, match="symmetry"):
        parse_symmetries(GO, word)


def told(line: str, **heads: bool) -> str:
    """Return the analysis of an engine whose network has these heads, after a few slices."""
    said, net = list[str](), network(**heads)
    evaluate = Evaluator(net, GO, device="cpu", max_batch=4)
    think = partial(_thinker, evaluate)
    engine = GtpEngine(
        GO, name="Keima", version="1", think=think, write=said.append, simulations=8, predict=make_predictor(net)
    )
    for each in ("play b C3", line):
        engine.handle_line(each, 0.0)
    for _ in range(6):
        engine.advance()
    engine.close()
    return said[-2]


def _thinker(evaluate: Evaluator, max_simulations: int) -> Thinker:
    return Thinker(GO, evaluate, max_batch=4, max_simulations=min(max_simulations, 1000))


@pytest.mark.medium
def test_an_analysis_has_points_and_ownership_if_the_network_predicts_them() -> None:
    line = told("kata-analyze 1 ownership true", ownership=True, score=True)
    moves, _, owners = line.partition(" ownership ")
    assert len(owners.split()) == 25 and all(abs(float(share)) <= 1 for share in owners.split())
    assert len(re.findall(r"scoreMean (-?[\d.]+) scoreLead \1 ", moves)) == len(re.findall("info", moves)) > 0
    assert "ownership" not in told("kata-analyze 1", ownership=True, score=True)


@pytest.mark.medium
def test_other_networks_and_leela_s_analysis_leave_them_out() -> None:
    lines = [
        told(f"{name} 1 ownership true", ownership=heads, score=heads)
        for name, heads in (("kata-analyze", False), ("lz-analyze", True))
    ]
    assert all(line.startswith("info move") for line in lines)
    assert not {"ownership", "scoreLead"} & set(chain.from_iterable(line.split() for line in lines))
