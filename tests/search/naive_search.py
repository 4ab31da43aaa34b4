"""A second search to compare the compiled one with: recursive, in plain Python with dictionaries, written from the
papers.

It shares nothing with ``training.search``; in games of chance it gets the random numbers. Arithmetic is in doubles, so
a decision between nearly equal scores could differ from the compiled search's: such searches end in ``Undecided``, and
tests skip them.
"""

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from keima.config.sections.search import SearchSettings
from keima.games.game import CHANCE, Game, Planes, States

Floats = NDArray[np.float32]
Values = NDArray[np.float64]  # [players]
Path = tuple[int, ...]

NEARLY_EQUAL = 1e-5
STUB_ROWS = 8192


class Undecided(Exception):
    """Two scores are too close to tell which edge single precision follows."""


class StubEvaluator:
    """An untrained network: logits and values drawn from a position's checksum, independent of the batch."""

    def __init__(self, game: Game, *, seed: int = 0, policy_scale: float = 1.0, value_scale: float = 0.4) -> None:
        random = np.random.default_rng(seed)
        self._logits = (policy_scale * random.normal(size=(STUB_ROWS, game.num_actions))).astype(np.float32)
        shape = (STUB_ROWS, game.num_values) if game.num_values > 1 else STUB_ROWS
        self._values = np.tanh(value_scale * random.normal(size=shape)).astype(np.float32)
        self.positions = 0

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        self.positions += len(observations)
        rows = [zlib.crc32(observation.tobytes()) % STUB_ROWS for observation in observations]
        return self._logits[rows], self._values[rows]


@dataclass
class NaiveEdge:
    prior: float
    gumbel: float = 0.0
    visits: int = 0
    value: float = 0.0  # sum, for the player above
    proven: int | None = None  # -1, 0, 1 for the player above
    child: "NaiveNode | None" = None

    @property
    def mean(self) -> float:
        return self.value / self.visits


@dataclass
class NaiveNode:
    state: States
    player: int
    evaluation: float = 0.0
    proven: int | None = None  # for the player to move
    edges: dict[int, NaiveEdge] = field(default_factory=dict)  # by action
    order: list[int] = field(default_factory=list)  # actions by their first visit
    visits: int = 0
    value: float = 0.0  # sum

    @property
    def edge_visits(self) -> int:
        return sum(edge.visits for edge in self.edges.values())

    def visited(self) -> list[NaiveEdge]:
        return [self.edges[action] for action in self.order]


def best(scores: dict[int, float]) -> int:
    """Return the action with the largest score."""
    ranked = sorted(scores, key=lambda action: -scores[action])
    if len(ranked) > 1 and scores[ranked[0]] - scores[ranked[1]] < NEARLY_EQUAL * max(1.0, abs(scores[ranked[0]])):
        raise Undecided
    return ranked[0]


class NaiveSearch:
    """One tree. Searches that are ``full`` force playouts at the root; ``uniform`` draws numbers for chance
    outcomes.
    """

    def __init__(
        self,
        game: Game,
        evaluate: StubEvaluator,
        settings: SearchSettings,
        state: States,
        *,
        full: bool,
        uniform: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.game, self.evaluate, self.settings, self.full, self.uniform = game, evaluate, settings, full, uniform
        self.points = game.num_players == 1
        self.root = NaiveNode(state.copy(), game.current_player(state))
        self.num_simulations = 0  # only Gumbel plans with it

    def run(self, num_simulations: int, *, priors: dict[int, float], gumbels: dict[int, float]) -> None:
        """Search until the root has this many simulations, with these priors and this noise at the root."""
        self.num_simulations = num_simulations
        if not self.root.edges:
            self.simulate(self.root)
        for action, edge in self.root.edges.items():
            edge.prior, edge.gumbel = priors[action], gumbels.get(action, 0.0)
        while self.root.visits - 1 < num_simulations and self.root.proven is None:
            self.simulate(self.root)

    def play(self, action: int) -> None:
        """Make the subtree below ``action`` the tree."""
        child = self.root.edges[action].child
        assert child is not None
        self.root = child

    def simulate(self, node: NaiveNode) -> Values:
        """Run one simulation from ``node``; return its values, one for each player."""
        values = self._simulate(node)
        node.visits += 1
        node.value += self.seen_by(node, values)
        return values

    def seen_by(self, node: NaiveNode, values: Values) -> float:
        """Return the value for the player to move; that of chance in a one-player game is the player's."""
        return float(values[max(node.player, 0)])

    def for_all(self, values: Floats, player: int) -> Values:
        """Return the values of all players, from what the network says where ``player`` is to move."""
        if self.game.num_players > 2:
            return np.roll(values.astype(np.float64), player)
        value = float(values)
        return np.array([value] if self.points else [value, -value][:: 1 if player == 0 else -1])

    def _simulate(self, node: NaiveNode) -> Values:
        if node.proven is not None:
            return np.array([node.proven, -node.proven][:: 1 if node.player == 0 else -1], np.float64)
        if self.points and self.game.terminal(node.state):
            return np.zeros(1)  # all points were counted where they were made
        if self.game.terminal(node.state):
            returns = self.game.returns(node.state).astype(np.float64)
            if self.settings.proven_results and self.game.num_players == 2:
                node.proven = round(returns[node.player])
            return returns
        if node.player == CHANCE and node.visits == 0 and self.settings.evaluate_afterstates:
            return self.for_all(self.evaluate(self.game.observe(node.state)[None])[1][0], 0)
        if not node.edges and node.player != CHANCE:
            return self._expand(node)
        action = self.draw(node) if node.player == CHANCE else self.choose(node)
        edge = node.edges[action]
        if edge.child is None:
            state = node.state.copy()
            self.game.play(state, action)
            edge.child = NaiveNode(state, self.game.current_player(state))
            node.order.append(action)
        values = self.simulate(edge.child)
        if self.points:
            values = values * (1.0 if node.player == CHANCE else self.settings.discount)
            values += self.game.returns(edge.child.state) - self.game.returns(node.state)
        edge.visits += 1
        edge.value += self.seen_by(node, values)
        if edge.child.proven is not None:
            edge.proven = edge.child.proven if edge.child.player == node.player else -edge.child.proven
            self._settle(node)
        return values

    def _expand(self, node: NaiveNode) -> Values:
        logits, values = self.evaluate(self.game.observe(node.state)[None])
        legal = [int(action) for action in self.game.legal_actions(node.state)]
        weights = [math.exp(logits[0, action]) for action in legal]
        node.edges = {action: NaiveEdge(weight / sum(weights)) for action, weight in zip(legal, weights, strict=True)}
        found = self.for_all(values[0], node.player)
        node.evaluation = self.seen_by(node, found)
        return found

    def _settle(self, node: NaiveNode) -> None:
        known = [edge.proven for edge in node.edges.values()]
        if 1 in known:
            node.proven = 1
        elif None not in known:
            node.proven = max(proven for proven in known if proven is not None)

    def draw(self, node: NaiveNode) -> int:
        """Return the chance outcome that a simulation follows."""
        outcomes, probabilities = self.game.chance_outcomes(node.state)
        node.edges = {int(outcome): node.edges.get(int(outcome), NaiveEdge(0.0)) for outcome in outcomes}
        below = np.cumsum(probabilities, dtype=np.float64)
        return int(outcomes[min(int(np.searchsorted(below, self.uniform(), side="right")), len(outcomes) - 1)])

    def scaled(self, node: NaiveNode, unvisited: float) -> tuple[dict[int, float], float]:
        """Return the mean of each visited edge, and the value of the others; points are scaled to [-1, 1]."""
        means = {action: edge.mean for action, edge in node.edges.items() if edge.visits}
        if not self.points:
            return means, unvisited
        known = [*means.values(), unvisited]
        spread = max(max(known) - min(known), 0.01 * max(abs(max(known)), 1))
        middle = (max(known) + min(known)) / 2
        return {action: 2 * (mean - middle) / spread for action, mean in means.items()}, 2 * (
            unvisited - middle
        ) / spread

    def choose(self, node: NaiveNode) -> int:
        """Return the action that a simulation follows."""
        if self.settings.algorithm == "gumbel":
            return self.choose_gumbel_root(node) if node is self.root else self.choose_gumbel(node)
        return self.choose_puct(node)

    # PUCT: AlphaZero's formula, with KataGo's value of unvisited edges and forced playouts.

    def choose_puct(self, node: NaiveNode) -> int:
        settings, total = self.settings, node.edge_visits
        c = settings.c_puct + math.log((1 + total + settings.c_puct_log_base) / settings.c_puct_log_base)
        reduction = settings.root_fpu_reduction if node is self.root else settings.fpu_reduction
        explored = sum(edge.prior for edge in node.visited())
        means, mean = self.scaled(node, node.value / node.visits)
        unvisited = mean - reduction * math.sqrt(explored)
        scores = {}
        for action, edge in node.edges.items():
            value = means.get(action, unvisited)
            if edge.proven != -1:
                scores[action] = value + c * edge.prior * math.sqrt(total + 0.01) / (1 + edge.visits)
        if node is self.root and self.full and settings.forced_playouts:
            for action in reversed(node.order):
                edge = node.edges[action]
                lacking = settings.forced_playouts_k * edge.prior * total - edge.visits**2
                if abs(lacking) < NEARLY_EQUAL * edge.visits**2:
                    raise Undecided
                if lacking > 0 and edge.proven != -1:
                    return action
        return best(scores)

    # Gumbel: the paper's section 3 at the root, section 5 below, and appendix D for the value of unvisited edges.

    def improved_logits(self, node: NaiveNode) -> dict[int, float]:
        visited = node.visited()
        mixed = node.evaluation
        if visited:
            mean = sum(edge.prior * edge.mean for edge in visited) / sum(edge.prior for edge in visited)
            mixed = (node.evaluation + node.edge_visits * mean) / (1 + node.edge_visits)
        most = max(edge.visits for edge in node.edges.values())
        scale = (self.settings.gumbel.c_visit + most) * self.settings.gumbel.c_scale
        means, mixed = self.scaled(node, mixed)
        completed = {action: means.get(action, mixed) for action in node.edges}
        return {
            action: math.log(edge.prior) + scale * (completed[action] + 1) / 2 for action, edge in node.edges.items()
        }

    def improved_policy(self, node: NaiveNode) -> dict[int, float]:
        logits = self.improved_logits(node)
        weights = {action: math.exp(logit - max(logits.values())) for action, logit in logits.items()}
        return {action: weight / sum(weights.values()) for action, weight in weights.items()}

    def choose_gumbel(self, node: NaiveNode) -> int:
        policy = self.improved_policy(node)
        total = node.edge_visits
        return best(
            {
                action: policy[action] - edge.visits / (1 + total)
                for action, edge in node.edges.items()
                if edge.proven != -1
            }
        )

    def choose_gumbel_root(self, node: NaiveNode) -> int:
        logits = self.improved_logits(node)
        scores = {action: logits[action] + edge.gumbel for action, edge in node.edges.items() if edge.proven != -1}
        considered = min(self.settings.gumbel.considered_actions, len(node.edges))
        due = considered_visits(considered, self.num_simulations)[node.edge_visits]
        on_schedule = {action: score for action, score in scores.items() if node.edges[action].visits == due}
        return best(on_schedule or scores)


def considered_visits(considered: int, num_simulations: int) -> list[int]:
    """Return the visit count that an action must have to be simulated in each turn of sequential halving.

    Written like the published implementation in mctx: one counter for each considered action.
    """
    if considered <= 1:
        return list(range(num_simulations))
    phases = math.ceil(math.log2(considered))
    counters = [0] * considered
    sequence: list[int] = []
    left = considered
    while len(sequence) < num_simulations:
        for _ in range(max(1, int(num_simulations / (phases * left)))):
            sequence += counters[:left]
            counters[:left] = [counter + 1 for counter in counters[:left]]
        left = max(2, left // 2)
    return sequence[:num_simulations]
