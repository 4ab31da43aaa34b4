"""The settings of search, in self-play and in matches."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from keima.config.sections.types import Auto, Count, NotNegative, Positive, Section, Share

Plies = Annotated[int, Field(ge=0, le=20)]


class GumbelSettings(Section):
    """Settings of the Gumbel search (Danihelka et al. 2022); the defaults are the paper's."""

    considered_actions: Annotated[int, Field(ge=2, le=1024)] = 16
    """Root moves in sequential halving."""
    c_visit: NotNegative = 50.0
    """With c_scale: weight of the values against the policy."""
    c_scale: Positive = 1.0
    """With c_visit: weight of the values against the policy."""
    noise: NotNegative = 1.0
    """Scale of the Gumbel noise in self-play; 0: none, which suits games of chance."""


class ResignationSettings(Section):
    """Resignation in self-play."""

    enabled: bool = False
    """Resign lost games."""
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Value, negated, below which a player resigns."""
    consecutive: Count = 3
    """Consecutive moves of the player for which its value must be that low."""
    no_resign_fraction: Share = 0.1
    """Share of games played to the end anyway, to count false resignations."""


class SearchSettings(Section):
    """Search in self-play. Defaults follow AlphaZero (Silver et al. 2018) and KataGo (Wu 2019)."""

    algorithm: Literal["puct", "gumbel"] = "puct"
    """puct: AlphaZero's search; gumbel: better with few simulations (Danihelka et al.)."""
    num_simulations: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Simulations for a move that becomes a policy target."""
    cheap_simulations: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Simulations for the other moves, which only advance the game."""
    full_search_probability: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Share of fully searched moves (KataGo's playout cap randomization); 1: all."""
    c_puct: Positive = 1.1
    """Weight of the policy against the values; higher explores more."""
    c_puct_log_base: Positive = 19652.0
    """Base of the growth of that weight: log((1 + visits + base) / base)."""
    fpu_reduction: Annotated[float, Field(ge=0, le=2)] = 0.2
    """First play urgency: value of an unvisited move below its parent's."""
    root_fpu_reduction: Annotated[float, Field(ge=0, le=2)] = 0.0
    """First play urgency at the root, where noise should be explored."""
    dirichlet_alpha: Auto | Positive = "auto"
    """Parameter of the root's noise; auto: 10 / (average number of legal actions)."""
    dirichlet_fraction: Share = 0.25
    """Share of noise in the root's policy."""
    root_policy_temperature: Positive = 1.1
    """Temperature of the root's policy; above 1 flattens it."""
    forced_playouts: bool = True
    """Visit every plausible root move, and prune those visits from the target."""
    forced_playouts_k: Positive = 2.0
    """Number k of forced visits: sqrt(k * policy * visits)."""
    leaves_per_tree: Annotated[int, Field(ge=1, le=256)] = 1
    """Leaves evaluated at once per tree; more fill batches when few games run."""
    virtual_loss: Positive = 1.0
    """Assumed losses of a leaf in evaluation, which send the next search elsewhere."""
    proven_results: bool = True
    """Back up proven wins and losses as certain."""
    lookahead_plies: Plies = 0
    """Plies solved by the rules alone before a network call; two players, no chance."""
    match_lookahead_plies: Plies = 0
    """Plies solved by the rules alone in evaluation, and in play with people."""
    match_policy_temperature: Positive = 1.0
    """Temperature of the policy at every node in evaluation; above 1 flattens it."""
    # In matches and play, the most that a better score counts, in values, once the game is decided; only in games won
    # by area, with networks that predict the score. After KataGo's dynamic score utility, 0.3 in all positions.
    match_score_utility: Share = 0.5
    """How much points count in decided games, in evaluation and play (Go, predict_score)."""
    match_early_stop: bool = False
    """End a search in evaluation once no move can overtake the most visited."""
    subtree_reuse: bool = True
    """Reuse the subtree of the move played."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """One-player games: value of a point one move later; 1: no discount."""
    evaluate_afterstates: bool = False
    """Games of chance: also evaluate positions before a chance outcome."""
    temperature: NotNegative = 1.0
    """Randomness of move choice at the start of a game; 0: the best move."""
    temperature_final: NotNegative = 0.2
    """Randomness of move choice towards the end of a game."""
    temperature_halflife: Auto | Positive = "auto"
    """Plies in which the difference of the two temperatures halves; auto: the board's longer side."""
    opening_random_moves: NotNegative = 0.0
    """Mean number of opening moves drawn from the policy alone, for variety."""
    opening_even_share: Share = 0.0
    """Share of the opening moves that are drawn uniformly instead, so that unusual positions are learned too."""
    random_move_share: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Mean share of later moves that are drawn uniformly; each game has from 0 to twice this."""
    gumbel: GumbelSettings = GumbelSettings()
    """Settings of the Gumbel search."""
    resignation: ResignationSettings = ResignationSettings()
    """Resignation in self-play."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.full_search_probability < 1 and self.cheap_simulations > self.num_simulations:
            raise ValueError(
                f"cheap_simulations ({self.cheap_simulations}) must not exceed num_simulations ({self.num_simulations})"
            )
        if self.temperature_final > self.temperature:
            raise ValueError(
                f"temperature_final ({self.temperature_final}) must not exceed temperature ({self.temperature})"
            )
        return self
