"""Auxiliary heads: their targets are right on readable boards, they are learned, and play ignores them."""

from typing import Any

import numpy as np
import pytest
import torch

from keima.config.sections.network import NetworkSettings
from keima.data.imports.imported_games import ImportedGame, make_imported_batch
from keima.data.records import GameBatch
from keima.games import Game, load_game
from keima.games.game import States
from keima.games.go.rules import score_lead
from keima.learning.learner import Learner, copy_to_device
from keima.networks.architectures.auxiliary_heads import add_score_to_value, make_predictor
from keima.networks.architectures.resnet import ResNet
from keima.networks.files.model import Model, decode_model, describe_model, encode_model
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.replay.window import Batch, ReplayWindow
from tests.games.go.naive_go import NaiveGo
from tests.small_networks import CONNECT_FOUR, look_trained
from tests.synthetic import synthetic_batch

GO = load_game("go", size=5, komi=0.5)
HEADS: dict[str, Any] = {
    "predict_reply": True,
    "predict_ownership": True,
    "predict_score": True,
    "predict_future": True,
}
# Black has the columns A and B and a stone on C3, White has D and E, and the rest of C is neutral: Black wins by half a
# point.
WALLS = "B1 D1 B2 D2 B3 D3 B4 D4 B5 D5 C3 pass pass"
OWNERS = np.array([[1, 1, 0, -1, -1]] * 2 + [[1, 1, 1, -1, -1]] + [[1, 1, 0, -1, -1]] * 2)


def games_of(*played: tuple[str, int]) -> GameBatch:
    """Return a batch of Go games from their moves and who resigned, as in records."""
    games = []
    for moves, resigned in played:
        actions = np.array([GO.parse_action(move) for move in moves.split()], np.int32)
        returns = np.array([-1, 1] if resigned == 1 else [1, -1], np.float32)
        games.append(ImportedGame(actions=actions, returns=returns, resigned=resigned, line=1))
    return make_imported_batch(games, GO)


def samples(game: Game, batch: GameBatch, positions: Any, symmetry: int, **heads: bool) -> Batch:
    """Return these positions of a batch under one symmetry."""
    window = ReplayWindow(game, capacity_positions=10**6, network=NetworkSettings(**heads))
    window.add(batch)
    places = np.array(positions, np.int64)
    return window.take(places, np.full(len(places), symmetry, np.int64))


@pytest.mark.parametrize("symmetry", range(8))
def test_ownership_turns_with_the_board_and_is_from_the_mover_s_view(symmetry: int) -> None:
    last = len(WALLS.split()) - 1
    batch = samples(GO, games_of(("A1 B1", 1), (WALLS, 0)), [2 + last - 1, 2 + last], symmetry, predict_ownership=True)
    assert batch.score_leads.tolist() == [-0.5, 0.5]  # White passes, then Black
    for mine, ownership in zip((-1, 1), batch.ownership.reshape(2, 5, 5), strict=True):
        assert sorted(ownership.ravel()) == sorted(mine * OWNERS.ravel())
    stones = batch.observations[:, :2]
    assert (batch.ownership.reshape(2, 5, 5)[stones[:, 0] == 1] == 1).all() and (stones[:, 0] == 1).sum() == 11
    assert (batch.ownership.reshape(2, 5, 5)[stones[:, 1] == 1] == -1).all() and (stones[:, 1] == 1).sum() == 11


def test_a_resigned_game_has_no_known_end() -> None:
    batch = samples(GO, games_of((WALLS, 0), ("A1 B1 C1", 1)), range(len(WALLS.split()) + 3), 0, predict_ownership=True)
    assert np.isnan(batch.score_leads).tolist() == [False] * len(WALLS.split()) + [True] * 3


def test_the_reply_is_the_policy_of_the_next_position_under_the_same_symmetry() -> None:
    game = load_game("go", size=5)
    record = synthetic_batch(game, games=3, full_share=1.0)
    everything = range(record.num_positions)
    for symmetry in (0, 3):
        batch = samples(game, record, everything, symmetry, predict_reply=True)
        ends = np.cumsum(record.lengths) - 1
        assert not batch.replies[ends].any()
        others = np.setdiff1d(everything, ends)
        assert np.array_equal(batch.replies[others], batch.policies[others + 1])


def test_where_the_opponent_searched_little_the_reply_is_the_move_played() -> None:
    record = synthetic_batch(CONNECT_FOUR, games=3, full_share=0.5)
    batch = samples(CONNECT_FOUR, record, range(record.num_positions), 1, predict_reply=True)
    cheap = np.flatnonzero(record.policy_sizes == 0)
    before = cheap[~np.isin(cheap, np.cumsum(record.lengths) - record.lengths)] - 1
    assert len(before) > 5
    assert (
        batch.replies[before].argmax(1).tolist()
        == CONNECT_FOUR.action_symmetries[1][record.actions[before + 1]].tolist()
    )
    assert (batch.replies[before].max(1) == 1).all()


def test_ownership_and_lead_are_those_of_the_rules() -> None:
    record = synthetic_batch(GO, games=20, resign_share=0.3)
    ends = np.cumsum(record.lengths)
    batch = samples(GO, record, ends - record.lengths, 0, predict_ownership=True)
    for index, begin in enumerate(ends - record.lengths):
        state, naive = GO.initial_state(), NaiveGo(**GO.options)
        for action in record.actions[begin : ends[index]].tolist():
            GO.play(state, action)
            naive.apply_action(action)
        if record.resigned[index]:
            assert np.isnan(batch.score_leads[index])
        else:
            assert batch.score_leads[index] == score_lead(state) == naive.score()
            assert batch.ownership[index].sum() - GO.options["komi"] == score_lead(state)


def test_connect_four_ends_with_the_stones_on_the_board_and_those_left_to_the_winner() -> None:
    record = synthetic_batch(CONNECT_FOUR, games=40, resign_share=0.0)
    starts = np.cumsum(record.lengths) - record.lengths
    batch = samples(CONNECT_FOUR, record, starts, 0, predict_ownership=True)
    leads = []
    for index, (begin, length) in enumerate(zip(starts, record.lengths, strict=True)):
        state = CONNECT_FOUR.initial_state()
        for action in record.actions[begin : begin + length].tolist():
            CONNECT_FOUR.play(state, action)
        symbols = np.array([line.split() for line in CONNECT_FOUR.render(state).splitlines()[:6]])
        assert np.array_equal(batch.ownership[index].reshape(6, 7), (symbols == "X") * 1 - (symbols == "O") * 1)
        first_won = float(CONNECT_FOUR.returns(state)[0])
        leads.append(first_won * (22 - (symbols == ("X" if first_won > 0 else "O")).sum()))
    assert batch.score_leads.tolist() == leads and {np.sign(lead) for lead in leads} >= {-1, 1}


@pytest.mark.parametrize("symmetry", [0, 1])
def test_the_future_is_the_board_when_the_same_player_moves_again_some_plies_later(symmetry: int) -> None:
    game = load_game("chess", max_plies=30)
    record = synthetic_batch(game, games=2, resign_share=0.0)
    everything = np.arange(record.num_positions)
    batch = samples(game, record, everything, symmetry, predict_future=True)
    pieces = batch.observations[:, :12].reshape(-1, 2, 6, 64).max(2).reshape(-1, 128)
    ends = np.repeat(np.cumsum(record.lengths), record.lengths)
    later = everything + np.minimum(6, (ends - 1 - everything) // 2 * 2)
    assert np.array_equal(batch.futures, pieces[later])
    assert (later == everything).any() and (batch.futures != pieces).any()


def test_a_window_without_auxiliary_heads_has_no_targets_for_them() -> None:
    batch = samples(GO, games_of((WALLS, 0)), [0, 1], 0)
    assert batch.replies.shape == batch.ownership.shape == batch.futures.shape == (2, 0)


def learn(
    batch: Batch, game: Game = GO, *, steps: int = 120, **heads: Any
) -> tuple[torch.nn.Module, dict[str, float], dict[str, float]]:
    """Return a network that has memorized a batch, and the losses on it before and after."""
    torch.manual_seed(0)
    learner = Learner(
        build_network(game, blocks=1, channels=16, **heads), device="cpu", learning_rate=0.01, warmup_steps=10
    )
    tensors = copy_to_device(batch, torch.device("cpu"))
    reports = [learner.descend(tensors) for _ in range(steps)]
    first, last = ({name: float(metric) for name, metric in reports[index].metrics.items()} for index in (0, -1))
    return learner.network, first, last


@pytest.mark.slow
def test_each_head_can_memorize_a_batch() -> None:
    record = synthetic_batch(GO, games=8, resign_share=0.2, num_simulations=1)
    batch = samples(
        GO,
        record,
        range(0, record.num_positions, max(1, record.num_positions // 24)),
        0,
        predict_reply=True,
        predict_ownership=True,
        predict_future=True,
    )
    _, first, last = learn(batch, **HEADS)
    of_heads = ("reply_loss", "ownership_loss", "score_loss", "future_loss")
    assert first["auxiliary_loss"] == pytest.approx(sum(first[name] for name in of_heads))
    assert first["loss"] == pytest.approx(first["policy_loss"] + first["value_loss"] + first["auxiliary_loss"])
    for name in ("policy_loss", "value_loss", *of_heads):
        assert 0 <= last[name] < 0.6 * first[name], name
    assert "reply_loss" not in learn(batch, steps=1, predict_score=True)[1]


@pytest.mark.medium
def test_unknown_targets_teach_nothing() -> None:
    """Neither the end of resigned games, nor a missing reply."""
    record = games_of(("A1 B1 C1", 1))
    batch = samples(GO, record, [2], 0, predict_reply=True, predict_ownership=True, predict_future=True)
    _, first, last = learn(batch, **HEADS)
    assert first["reply_loss"] == first["ownership_loss"] == first["score_loss"] == last["score_loss"] == 0
    assert last["policy_loss"] < first["policy_loss"]


@pytest.mark.medium
def test_a_network_predicts_learned_ends_from_the_mover_s_view() -> None:
    plies = len(WALLS.split())
    batch = samples(
        GO,
        games_of((WALLS, 0), ("C3 pass pass", 0)),
        [*range(1, plies), plies + 1, plies + 2],
        0,
        predict_ownership=True,
    )
    network, _, _ = learn(batch, predict_ownership=True, predict_score=True)
    predict = make_predictor(network)
    assert predict is not None
    predictions = predict(batch.observations)
    assert predictions.ownership is not None and predictions.score_leads is not None
    assert predictions.score_leads == pytest.approx(batch.score_leads, abs=2.0) and batch.score_leads[-2:].tolist() == [
        -24.5,
        24.5,
    ]
    assert np.abs(predictions.ownership - batch.ownership).max() < 0.5


@pytest.mark.slow
def test_where_points_stay_empty_a_network_predicts_them_as_neutral() -> None:
    record = synthetic_batch(CONNECT_FOUR, games=2, resign_share=0.0, num_simulations=1)
    batch = samples(CONNECT_FOUR, record, range(4, record.num_positions, 3), 0, predict_ownership=True)
    network, first, last = learn(batch, CONNECT_FOUR, predict_ownership=True)
    assert last["ownership_loss"] < 0.5 * first["ownership_loss"]
    predict = make_predictor(network)
    assert predict is not None
    predictions = predict(batch.observations)
    assert predictions.ownership is not None and predictions.score_leads is None
    assert (batch.ownership == 0).any() and np.abs(predictions.ownership - batch.ownership).mean() < 0.3


def test_a_network_predicts_only_what_it_has_learned() -> None:
    observations = np.stack([GO.observe(state) for state in positions(3)])
    predict = make_predictor(build_network(GO, blocks=1, channels=8, predict_score=True))
    assert predict is not None
    predictions = predict(observations)
    assert (
        predictions.ownership is None and predictions.score_leads is not None and predictions.score_leads.shape == (3,)
    )
    assert make_predictor(build_network(GO, blocks=1, channels=8, predict_reply=True)) is None
    assert make_predictor(build_network(CONNECT_FOUR, type="spiking", blocks=1, channels=8)) is None


def test_for_a_search_that_counts_points_the_score_comes_beside_the_value() -> None:
    observations = np.stack([GO.observe(state) for state in positions(5)])
    network = build_network(GO, blocks=1, channels=8, predict_score=True)
    assert isinstance(network, ResNet)
    torch.nn.init.normal_(network.auxiliary.score[-1].weight)  # type: ignore[union-attr, index]
    predict = make_predictor(network)
    assert predict is not None
    scoring, utility = add_score_to_value(network, GO, 0.3)
    logits, values = Evaluator(network, GO, device="cpu", dtype="float32")(observations)
    same, both = Evaluator(scoring, GO, device="cpu", dtype="float32")(observations)
    assert utility == 0.3 and both.shape == (5, 2)
    assert same == pytest.approx(logits, abs=1e-5) and both[:, 0] == pytest.approx(values, abs=1e-5)
    assert both[:, 1] == pytest.approx(predict(observations).score_leads, abs=1e-2)
    assert np.ptp(both[:, 1]) > 0.1


@pytest.mark.parametrize(
    ("game", "heads", "utility"),
    [(GO, {"predict_ownership": True}, 0.3), (GO, HEADS, 0.0), (CONNECT_FOUR, HEADS, 0.3)],
    ids=["no score", "switched off", "not won by area"],
)
def test_without_points_to_count_a_network_plays_as_it_is(game: Game, heads: dict[str, bool], utility: float) -> None:
    network = build_network(game, blocks=1, channels=8, **heads)
    assert add_score_to_value(network, game, utility) == (network, 0.0)


def positions(count: int) -> States:
    states, random = GO.initial_states(count), np.random.default_rng(1)
    for state in states:
        for _ in range(int(random.integers(10))):
            GO.play(state, int(random.choice(GO.legal_actions(state)[:-1])))
    return states


def test_play_ignores_the_heads_but_they_travel() -> None:
    torch.manual_seed(3)
    network = build_network(GO, blocks=2, channels=16, **HEADS)
    assert isinstance(network, ResNet)
    look_trained(network, 0.3)
    shape: dict[str, Any] = {"type": "resnet", "blocks": 2, "channels": 16, **HEADS}
    plain = build_network(GO, blocks=2, channels=16)
    weights = network.eval().state_dict()
    plain.load_state_dict({name: tensor for name, tensor in weights.items() if not name.startswith("auxiliary.")})
    observations = np.stack([GO.observe(state) for state in positions(32)])
    for ours, theirs in zip(
        *(Evaluator(each.eval(), GO, device="cpu")(observations) for each in (network, plain)), strict=True
    ):
        assert np.array_equal(ours, theirs)
    model = decode_model(encode_model(Model(description=describe_model(GO, shape, 1), weights=weights), GO))
    assert isinstance(model.build(GO).auxiliary, torch.nn.Module)


@pytest.mark.parametrize(
    ("game", "options", "complaint"),
    [
        (
            "twenty48",
            {"predict_ownership": True},
            "network.predict_ownership: twenty48 has no final score of its board",
        ),
        ("chess", {"predict_score": True}, "network.predict_score: chess has no final score of its board"),
        (
            "twenty48",
            {"predict_future": True},
            "network.predict_future: the observations of twenty48 do not begin with",
        ),
        ("twenty48", {"predict_reply": True}, "network.predict_reply: twenty48 has no replies"),
        (
            "go",
            {"type": "spiking", "predict_reply": True},
            "network.predict_reply: a network of type spiking has no such head",
        ),
    ],
)
def test_heads_that_a_game_or_a_network_cannot_have_are_refused(
    game: str, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        build_network(load_game(game), blocks=1, channels=8, **options)
