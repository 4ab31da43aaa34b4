"""Games of chance and of points, from search to the learner, on a small 2048."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from keima.config.sections.search import ResignationSettings, SearchSettings
from keima.config.sections.training import TrainingSettings
from keima.data.records import CHANCE_OUTCOME, FULL_SEARCH, CorruptBatch, GameBatch, decode_batch, encode_batch
from keima.data.verify import verify_batch
from keima.games import load_game
from keima.games.chance import sample_chance_outcome
from keima.games.game import CHANCE, Game
from keima.learning.learner import Learner, copy_to_device
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.networks.value_heads import PointsHead
from keima.replay.window import Batch, ReplayWindow
from keima.self_play.parallel_games import SelfPlay
from keima.worker.batching import MOST_POSITIONS, gather_columns, records_that_fit
from tests.search.forest import Forest, random_states
from tests.search.naive_search import StubEvaluator
from tests.self_play.test_self_play import play, same

SMALL = load_game("twenty48", height=3, width=3)
VARIANTS = {
    "puct": SearchSettings(num_simulations=12, cheap_simulations=5),
    "gumbel": SearchSettings(algorithm="gumbel", num_simulations=6, cheap_simulations=6, full_search_probability=1.0),
    "several leaves": SearchSettings(num_simulations=12, cheap_simulations=5, leaves_per_tree=3),
}
STUB = StubEvaluator(SMALL, value_scale=1.0)


def batch_of(variant: str, games: int = 8) -> GameBatch:
    """Return self-play games by an untrained network."""
    texts = {"batch_id": "b", "run_id": "r", "worker": "w", "game": SMALL.name, "options": SMALL.options}
    numbers = {"rules_version": SMALL.rules_version, "first_game": 0}
    return GameBatch(**texts, **numbers, **gather_columns(play(SMALL, VARIANTS[variant], games, evaluate=STUB)))


@pytest.fixture(scope="module")
def batch() -> GameBatch:
    return batch_of("gumbel")


def scores_before(game: Game, batch: GameBatch) -> list[np.ndarray]:
    """Return, for each game, the points before each of its moves and at its end."""
    found = []
    for index in range(batch.num_games):
        state = game.initial_state()
        scores = [0.0]
        for action in batch.game_record(index).actions:
            game.play(state, int(action))
            scores.append(float(game.returns(state)[0]))
        found.append(np.array(scores))
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_self_play_of_games_of_chance_follows_the_rules(variant: str) -> None:
    played = decode_batch(encode_batch(batch_of(variant)))
    verify_batch(played, SMALL)
    chance = (played.flags & CHANCE_OUTCOME) != 0
    assert 0.4 < chance.mean() < 0.6 and not played.root_values[chance].any()
    assert (played.returns > 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_games_of_chance_do_not_depend_on_parallel_games(variant: str) -> None:
    alone, together = (play(SMALL, VARIANTS[variant], 6, evaluate=STUB, parallel_games=count) for count in (1, 6))
    assert same(alone, together)
    assert len({record.actions.tobytes() for record in alone}) == 6


@pytest.mark.medium
def test_outcomes_are_as_frequent_as_they_are_probable() -> None:
    state = SMALL.initial_state()
    SMALL.play(state, 8)  # a 2 in the middle
    expected = dict(zip(*(array.tolist() for array in SMALL.chance_outcomes(state)), strict=True))
    streams, scratch = np.array([3], np.uint64), SMALL.make_move_scratch()
    draws = 5_000
    counts = Counter(sample_chance_outcome(SMALL.rules, state, scratch, streams, 0) for _ in range(draws))
    assert counts.keys() == expected.keys()
    chi_square = sum((counts[outcome] - draws * p) ** 2 / (draws * p) for outcome, p in expected.items())
    assert chi_square < 37.7  # the 99.9 % quantile for 15 degrees of freedom


@pytest.mark.parametrize("evaluated", [True, False])
def test_an_afterstate_is_worth_the_mean_of_its_evaluation_and_of_its_outcomes(evaluated: bool) -> None:
    states = random_states(SMALL, 3, np.random.default_rng(5), most_plies=30)
    settings = VARIANTS["puct"].model_copy(update={"evaluate_afterstates": evaluated})
    forest = Forest(SMALL, STUB, settings, states, num_simulations=100).run()
    seen = 0
    for b in range(len(states)):
        for afterstate in forest.children(b):
            node = forest.trees.nodes[b, afterstate]
            outcomes = [forest.trees.nodes[b, child] for child in forest.children(b, afterstate)]
            assert node.chance and sum(outcome.visits for outcome in outcomes) + evaluated == node.visits
            mean = (
                sum(outcome.value_sum for outcome in outcomes) + (node.evaluation if evaluated else 0)
            ) / node.visits
            assert node.value_sum / node.visits == pytest.approx(node.reward + mean, abs=1e-3)
            seen += len(outcomes)
    assert seen > 10


def test_the_subtree_kept_after_a_move_does_not_count_its_points_again() -> None:
    states = random_states(SMALL, 8, np.random.default_rng(1), most_plies=40)
    forest = Forest(SMALL, STUB, VARIANTS["puct"], states, num_simulations=60).run()
    nodes, kept = forest.trees.nodes, 0
    for b in range(len(states)):
        afterstate = forest.busiest(b)
        outcome = max(forest.children(b, afterstate), key=lambda child: int(nodes[b, child].visits))
        visits, value = int(nodes[b, outcome].visits), float(nodes[b, outcome].value_sum)  # chance brings no points
        below = {path[2:]: found for path, found in forest.summary(b).items() if path[:2] == forest.path_to(b, outcome)}
        forest.keep(b, outcome)
        assert (int(nodes[b, 0].visits), float(nodes[b, 0].value_sum)) == (visits, pytest.approx(value))
        assert forest.summary(b) == {path: found for path, found in below.items() if path}
        kept += len(below)
    assert kept > 20


def test_points_are_sent_with_a_precision_of_one_part_in_256(batch: GameBatch) -> None:
    again = decode_batch(encode_batch(batch))
    np.testing.assert_allclose(again.root_values, batch.root_values, rtol=1 / 256)
    assert not np.array_equal(again.root_values, batch.root_values)
    np.testing.assert_array_equal(again.returns, batch.returns)
    assert encode_batch(again) == encode_batch(batch)


def test_points_that_are_not_finite_are_refused(batch: GameBatch) -> None:
    for name in ("returns", "root_values"):
        for value in (np.nan, np.inf, 1e11):
            column = getattr(batch, name).copy()
            column.flat[0] = value
            with pytest.raises(CorruptBatch, match="is outside the range of points"):
                encode_batch(replace(batch, **{name: column}))


def test_impossible_chance_outcomes_are_refused(batch: GameBatch) -> None:
    actions = batch.actions.copy()
    actions[1] = actions[0]  # onto the first tile
    with pytest.raises(CorruptBatch, match="game 0 after 1 moves: the chance outcome is impossible"):
        verify_batch(replace(batch, actions=actions), SMALL)


@pytest.mark.parametrize(("ply", "flags"), [(0, 0), (2, CHANCE_OUTCOME)])
def test_a_move_of_the_wrong_side_is_refused(batch: GameBatch, ply: int, flags: int) -> None:
    changed = batch.flags.copy()
    assert changed[ply] in (CHANCE_OUTCOME, FULL_SEARCH)
    changed[ply] = flags
    with pytest.raises(CorruptBatch, match=f"game 0 after {ply} moves: a chance outcome stands where"):
        verify_batch(replace(batch, flags=changed), SMALL)


@pytest.mark.parametrize(("td_lambda", "discount"), [(0.0, 1.0), (0.7, 1.0), (1.0, 1.0), (0.7, 0.9), (1.0, 0.99)])
def test_the_targets_are_the_points_still_to_be_made(batch: GameBatch, td_lambda: float, discount: float) -> None:
    window = ReplayWindow(
        SMALL,
        capacity_positions=10**6,
        training=TrainingSettings(td_lambda=td_lambda),
        search=SearchSettings(discount=discount),
    )
    window.add(batch)
    targets = window._values.rows
    first = 0
    for index, scores in enumerate(scores_before(SMALL, batch)):
        record = batch.game_record(index)
        then = 0.0
        for ply in reversed(range(len(record.actions))):
            kept, worth = (1.0, 1.0) if record.flags[ply] & CHANCE_OUTCOME else (td_lambda, discount)
            then = (1 - kept) * record.root_values[ply] + kept * (worth * then + scores[ply + 1] - scores[ply])
            assert targets[first + ply] == pytest.approx(then, rel=1e-4, abs=1e-3)
        first += len(record.actions)


def test_only_positions_with_a_player_to_move_are_learned_from(batch: GameBatch) -> None:
    window = ReplayWindow(SMALL, capacity_positions=10**6)
    assert window.add(batch) == int(((batch.flags & CHANCE_OUTCOME) == 0).sum())
    assert window.sample(200, 1).policy_mask.all()


@pytest.mark.slow
def test_a_network_can_memorize_points() -> None:
    torch.manual_seed(0)
    taught = Learner(
        build_network(SMALL, blocks=1, channels=16), device="cpu", learning_rate=0.01, warmup_steps=10, ema_decay=0.9
    )
    learned = Batch.empty(SMALL, 16)
    learned.observations[:] = np.random.default_rng(0).normal(size=learned.observations.shape)
    learned.policies[:], learned.legal[:], learned.policy_mask[:] = 0.25, True, 1
    learned.values[:] = np.linspace(0, 2000, 16)
    for _ in range(300):
        taught.descend(copy_to_device(learned, torch.device("cpu")))
    evaluate = Evaluator(taught.average.network, SMALL, device="cpu")
    _, values = evaluate(learned.observations)
    np.testing.assert_allclose(values, learned.values, atol=60)


def test_a_new_network_expects_few_points() -> None:
    _, values = Evaluator(build_network(SMALL, blocks=2, channels=16), SMALL, device="cpu")(
        np.stack([SMALL.observe(state) for state in random_states(SMALL, 8, np.random.default_rng(2), most_plies=30)])
    )
    assert (values >= 0).all() and (values < 50).all()


@pytest.mark.medium
def test_the_loss_of_points_is_minimal_for_the_mean_of_the_targets() -> None:
    head = PointsHead(4, most=3_932_164)
    targets = torch.tensor([100.0, 100.0, 400.0, 90_000.0])
    logits = torch.zeros(1, 601, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(2000):
        optimizer.zero_grad()
        head.loss(logits.expand(4, -1), targets).backward()
        optimizer.step()
    assert head.values(logits.detach()).item() == pytest.approx(targets.mean().item(), rel=0.01)


def test_points_beyond_the_maximum_count_as_the_maximum() -> None:
    head = PointsHead(4, most=10_000.0)
    logits = torch.full((1, 601), -50.0)
    logits[0, -1] = 50.0
    assert head.values(logits).item() == pytest.approx(10_000)
    assert head.loss(logits, torch.tensor([1e9])).item() == pytest.approx(0, abs=1e-4)


def test_games_for_points_are_never_resigned() -> None:
    resignation = ResignationSettings(enabled=True, threshold=0.01, consecutive=1)
    records = play(SMALL, VARIANTS["gumbel"].model_copy(update={"resignation": resignation}), 4, evaluate=STUB)
    assert not any(record.resigned for record in records)


@pytest.mark.parametrize(
    ("plies", "fit"), [([10, 20, 30], 3), ([MOST_POSITIONS, 1], 1), ([MOST_POSITIONS + 1, 1], 1), ([300_000] * 3, 1)]
)
def test_a_batch_of_long_games_contains_fewer_of_them(plies: list[int], fit: int) -> None:
    record = play(SMALL, VARIANTS["gumbel"], 1, evaluate=STUB)[0]
    records = [replace(record, actions=np.zeros(count, np.int32)) for count in plies]
    assert len(records_that_fit(records)) == fit


DICE = """
import numpy as np
from keima.games.authoring.plain import plain_game


def game(dice=2, moves=40):
    def start():
        return np.zeros((1, 3), np.int16)  # dice that are still to be rolled, moves made, the sum

    def legal_moves(board, player):
        for move in range(moves):
            yield move

    def play(board, player, move):
        board[0, 0] = dice
        board[0, 1] += 1
        return -player

    def chance(board):
        return np.full(6, (1.0 if board[0, 0] > 0 else 0.0) / 6)

    def happen(board, player, outcome):
        board[0, 0] -= 1
        board[0, 2] += outcome
        return player

    def result(board, player):
        if board[0, 1] == 6 and board[0, 0] == 0:
            return 1 if board[0, 2] % 2 == 0 else -1
        return None

    return plain_game(
        start=start, legal_moves=legal_moves, play=play, chance=chance, happen=happen, outcomes=6, result=result,
        moves=moves, max_plies=30,
    )
"""


def test_dice_that_are_rolled_one_after_the_other_overfill_no_tree(tmp_path: Path) -> None:
    (tmp_path / "dice.py").write_text(DICE)
    game, settings = (
        load_game(str(tmp_path / "dice.py")),
        SearchSettings(num_simulations=64, full_search_probability=1.0),
    )
    self_play = SelfPlay(game, StubEvaluator(game), settings, parallel_games=2)
    self_play.begin([1, 2])
    trees, most = self_play._games.search.trees, 0
    while self_play.num_playing:
        self_play.advance()
        most = max(most, int(trees.searches.used_nodes.max()))
    assert 132 < most <= trees.nodes.shape[1], "where a simulation adds three nodes, two for each are not enough"


def test_nature_begins_the_game() -> None:
    assert SMALL.current_player(SMALL.initial_state()) == CHANCE
