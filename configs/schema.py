"""What a run can be told: every setting with its type, its bounds and its default.

Each section is a frozen pydantic model that refuses unknown keys and does not guess at types. ``configs.load`` reads
YAML into ``Settings``; the shipped files beside this one explain every key to users. "auto" means that the owner of the
setting chooses when the run starts, on the machine on which it starts.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from configs.commands import connector

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Plies = Annotated[int, Field(ge=0, le=20)]
Scalar = bool | int | float | str
SEED_ACCOUNTS = {
    "chess": "pgn-files",
    "go": "sgf-files",
}  # by the game: in whose account the games of training.window.seed_games are
SEED_FILES = {"chess": (".pgn", ".pgn.zst"), "go": (".sgf",)}  # and how the files' names end


def _like(pattern: str, description: str) -> AfterValidator:
    """Text of exactly ``pattern``, refused in words rather than with a regular expression."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {description}, found {text!r}")
        return text

    return AfterValidator(check)


Line = Annotated[str, Field(max_length=4096), _like(r"[^\x00-\x1f\x7f]+", "one line of text")]
Name = Annotated[
    str, _like(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "up to 64 letters, digits, '.', '_', '-', no sign first")
]
Host = Annotated[str, _like(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,252}", "a host name or an IP address")]
User = Annotated[str, _like(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,127}", "a user name")]  # also of a domain: CORP\alice
Variable = Annotated[str, _like(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "the name of an environment variable")]
ClassPath = Annotated[str, _like(r"[^\W\d]\w*(\.[^\W\d]\w*)+", "a class as module.Class"), Field(max_length=300)]


def _tuple(value: Any) -> Any:
    """YAML has lists; frozen settings have tuples."""
    return tuple(value) if isinstance(value, list) else value


class Section(BaseModel):
    """What all settings share: they cannot be changed, take no unknown key, and "3" is not 3."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RunSettings(Section):
    """The run as a whole; it ends at the first of its bounds, or when it is stopped if it has none."""

    name: Name
    directory: Line = "runs"  # the run writes everything to <directory>/<name>
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    iterations: Count | None = None
    minutes: Positive | None = None


class GameSettings(Section):
    """Which game, with the options that it takes."""

    name: Name
    options: dict[str, Scalar] = {}


class NetworkSettings(Section):
    """The residual network (He et al. 2016; AlphaZero's form), with KataGo's global pooling if wanted, or its form with
    spikes.
    """

    type: Literal["resnet", "spiking"] = "resnet"
    blocks: Annotated[int, Field(ge=1, le=100)] = 6
    channels: Annotated[int, Field(ge=4, le=2048)] = 64
    global_pooling: bool = True
    time_steps: Annotated[int, Field(ge=1, le=64)] | None = None  # only for spiking, which by itself has 4
    predict_reply: bool = False  # heads to learn by, which playing never asks; only for resnet
    predict_ownership: bool = False  # of Go and Connect Four, as the next
    predict_score: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.time_steps is not None and self.type != "spiking":
            raise ValueError(f"time_steps: a network of type {self.type} has none; only one of type spiking has")
        return self


class GumbelSettings(Section):
    """The Gumbel search's own settings (Danihelka et al. 2022); the defaults are the paper's."""

    considered_actions: Annotated[int, Field(ge=2, le=1024)] = 16
    c_visit: NotNegative = 50.0
    c_scale: Positive = 1.0
    noise: NotNegative = 1.0  # of the Gumbel draws at the root in self-play; 0: none (gumbel_scale in DeepMind's mctx)


class ResignationSettings(Section):
    """When self-play gives a game up."""

    enabled: bool = False
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.95  # resigns when the root value is below minus this ...
    consecutive: Count = 3  # ... in so many of the player's own moves in a row
    no_resign_fraction: Share = 0.1  # games played to the end all the same, to count false resignations


class SearchSettings(Section):
    """Search in self-play. Defaults: AlphaZero (Silver et al. 2018) and KataGo (Wu 2019)."""

    algorithm: Literal["puct", "gumbel"] = "puct"
    num_simulations: Annotated[int, Field(ge=1, le=100_000)] = 64
    cheap_simulations: Annotated[int, Field(ge=1, le=100_000)] = 16
    full_search_probability: Annotated[float, Field(gt=0, le=1)] = 0.25  # 1: every move is searched fully
    c_puct: Positive = 1.1
    c_puct_log_base: Positive = 19652.0  # exploration grows by log((1 + visits + base) / base)
    fpu_reduction: Annotated[float, Field(ge=0, le=2)] = 0.2
    root_fpu_reduction: Annotated[float, Field(ge=0, le=2)] = 0.0
    dirichlet_alpha: Auto | Positive = "auto"  # auto: 10 / (average number of legal actions)
    dirichlet_fraction: Share = 0.25
    root_policy_temperature: Positive = 1.1
    forced_playouts: bool = True
    forced_playouts_k: Positive = 2.0
    leaves_per_tree: Annotated[int, Field(ge=1, le=256)] = 1
    virtual_loss: Positive = 1.0
    proven_results: bool = True
    lookahead_plies: Plies = 0  # in games of two without chance
    match_lookahead_plies: Plies = 0
    match_policy_temperature: Positive = 1.0  # of the network's policy at every position; lc0 plays with 1.36
    subtree_reuse: bool = True
    discount: Annotated[float, Field(gt=0, le=1)] = (
        1.0  # in one-player games, of points that a move brings later; 1: all count alike
    )
    evaluate_afterstates: bool = (
        False  # in games of chance: of positions where nature moves, too, not only of what it makes of them
    )
    temperature: NotNegative = 1.0
    temperature_final: NotNegative = 0.2
    temperature_halflife: Auto | Positive = "auto"  # plies; auto: the board's longer side
    opening_random_moves: NotNegative = 0.0  # mean number of plies drawn from the bare policy at the start of a game
    opening_even_share: Share = 0.0  # of these plies, drawn evenly from the legal moves instead
    random_move_share: Annotated[float, Field(ge=0, le=0.5)] = (
        0.0  # mean over games, each from 0 to twice this, of the plies after those
    )
    gumbel: GumbelSettings = GumbelSettings()
    resignation: ResignationSettings = ResignationSettings()

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


class SelfPlaySettings(Section):
    """How games are spread over workers, threads of games and network calls."""

    games_per_worker: Count = 200  # granted ahead, so that a worker never waits for the main node
    parallel_games: Auto | Count = "auto"
    batch_size: Auto | Count = "auto"  # positions in one network call
    workers: Auto | Count = "auto"  # processes on this machine; auto: one per core
    device: Auto | Literal["cpu"] = "auto"  # of these processes; auto: as training.device says
    cache_positions: CountOrZero = 0
    flush_seconds: Positive = 30.0  # a finished game waits at most so long for its batch to fill


class WindowSettings(Section):
    """The replay window: min_positions * (positions so far / min_positions) ** growth_exponent, at most max_positions."""

    min_positions: Count = 20_000  # before so many there are no steps
    max_positions: Count = 1_000_000
    growth_exponent: Share = 0.65  # KataGo's taper; 0: the window keeps its first size; 1: it keeps everything
    seed_games: Annotated[
        tuple[Line, ...], BeforeValidator(_tuple)
    ] = ()  # PGN or SGF files; their games come before all others

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_positions > self.max_positions:
            raise ValueError(
                f"min_positions ({self.min_positions}) must not exceed max_positions ({self.max_positions})"
            )
        return self


class LearnerSettings(Section):
    """How many processes train."""

    ranks: Annotated[int, Field(ge=1, le=1024)] = 1


class TrainingSettings(Section):
    """The learner: its batches, its optimizer, its window, its checkpoints."""

    asynchronous: bool = True
    device: Auto | Literal["cpu", "cuda"] = (
        "auto"  # of this machine's learner and workers; auto: a GPU where there is one
    )
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 256
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: CountOrZero = 100
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of sgd
    weight_decay: Share = 1e-4
    clip_norm: Positive = 1.0
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999  # per step; 0: play with the raw weights
    value_weight: NotNegative = 1.0
    ownership_weight: NotNegative = 1.5
    td_lambda: Share = 1.0  # 1: the game's outcome; less: also the root values on the way to it
    mixed_precision: Auto | bool = "auto"
    symmetries: bool = True
    policy_surprise_weight: Share = 0.5
    samples_per_position: Annotated[float, Field(gt=0, le=100)] = 4.0
    games_per_iteration: Count = 500
    steps_per_model: Count | None = (
        None  # publishes within an iteration too, after so many steps; None: once an iteration
    )
    window: WindowSettings = WindowSettings()
    checkpoint_every: Count = 1  # iterations
    keep_checkpoints: Count = 3
    threads: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"  # of all ranks on this machine together
    learner: LearnerSettings = LearnerSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_size > self.window.min_positions:
            raise ValueError(
                f"batch_size ({self.batch_size}) must not exceed window.min_positions ({self.window.min_positions})"
            )
        if self.learner.ranks > self.batch_size:
            raise ValueError(
                f"learner.ranks ({self.learner.ranks}) must not exceed batch_size ({self.batch_size}), which they share"
            )
        if self.steps_per_model and not self.asynchronous:
            raise ValueError(
                "steps_per_model needs asynchronous: true, since without it one model plays all games of an iteration"
            )
        return self


class SprtSettings(Section):
    """The sequential test that a candidate must pass: is it elo1 stronger rather than elo0?"""

    elo0: Annotated[float, Field(ge=-1000, le=1000)] = 0.0
    elo1: Annotated[float, Field(ge=-1000, le=1000)] = 30.0
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # chance of accepting one that is only elo0 stronger
    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # chance of refusing one that is elo1 stronger

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.elo0 >= self.elo1:
            raise ValueError(f"elo0 ({self.elo0}) must be below elo1 ({self.elo1})")
        return self


class EvaluationSettings(Section):
    """How often and how the network's strength is measured."""

    every: CountOrZero = 1  # iterations; 0: never
    num_simulations: Annotated[int, Field(ge=1, le=100_000)] = 128
    perfect_play: bool = False  # only for games with an exact solver
    positions: Count = 1000  # on which perfect play is measured
    rating_games: CountOrZero = (
        100  # against the anchor and earlier versions, at each evaluation; 0 for a one-player game
    )
    score_games: CountOrZero = 0  # only for one-player games: played for the score, at each evaluation
    gating: Literal["none", "sprt"] = "none"
    gating_games: Annotated[int, Field(ge=2)] = 200  # undecided after so many, the candidate is refused
    sprt: SprtSettings = SprtSettings()


def first_label(host: str) -> str:
    """A worker's name when it is given none: the first label of its host, or the whole of an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.split(".")[0]
    return re.sub("[:%]", "-", host).strip("-")  # fe80::1%eth0 is an address, and a link


class WorkerSettings(Section):
    """One machine that plays games, as the main node reaches it over SSH.

    It needs a key: there is no place for passwords.

    What is None is as ``~/.ssh/config`` and the agent have it.
    """

    host: Host
    user: User | None = None  # at last: the name under which the main node's user is logged in
    key_path: Line | None = None  # the private key's file, on the main node
    gpu_id: CountOrZero = 0  # a worker without a GPU plays on its CPU
    gpu_ids: Annotated[tuple[CountOrZero, ...], Field(min_length=1), BeforeValidator(_tuple)] | None = (
        None  # several: one process for each
    )
    name: Name = ""
    processes: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"  # on a machine without a GPU; auto: one per core
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None  # at last: 22
    directory: Line = "~/keima"  # on the worker
    python: Line = "python3"  # on the worker
    proxy_jump: Line | None = None  # [user@]host[:port], as ssh has it
    parallel_games: Auto | Count = "auto"
    env: dict[Variable, Line] = {}

    @model_validator(mode="before")
    @classmethod
    def _name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" not in values and isinstance(values.get("host"), str):
            return {**values, "name": first_label(values["host"])}
        return values


def _could_be_confused(workers: tuple[WorkerSettings, ...]) -> Iterator[tuple[str, str]]:
    """Machines with several processes, which are numbered after the machine, and machines that have such a name
    themselves.
    """
    several = {worker.name for worker in workers if len(worker.gpu_ids or ()) > 1 or worker.processes != 1}
    for worker in workers:
        numbered = re.fullmatch(r"(.+)-[1-9][0-9]*", worker.name)
        if numbered and numbered[1] in several:
            yield numbered[1], worker.name


class PipSettings(Section):
    """Where bootstrap has pip take the packages from, on machines that cannot reach the Python Package Index as it is."""

    index_url: Line | None = None  # in place of the Python Package Index
    extra_index_url: Line | None = None  # beside it
    proxy: Line | None = None  # scheme://[user:password@]host:port
    torch_index: Line | None = None  # for torch alone, such as PyTorch's packages without CUDA
    wheels: Line | None = (
        None  # a folder of the main node with all packages, which are sent: nothing is downloaded there
    )

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables by which pip and setup.sh are told."""
        named = {
            "PIP_INDEX_URL": self.index_url,
            "PIP_EXTRA_INDEX_URL": self.extra_index_url,
            "PIP_PROXY": self.proxy,
            "TORCH_INDEX": self.torch_index,
        }
        return {name: value for name, value in named.items() if value}


class DistributedSettings(Section):
    """Self-play on other machines."""

    enabled: bool = False
    workers: Annotated[tuple[WorkerSettings, ...], BeforeValidator(_tuple)] = ()
    compression: bool = True
    batch_size: Annotated[int, Field(ge=1, le=10_000)] = 100  # games per transfer
    sync_interval: Count = 50  # games between model syncs
    load_balancing: bool = True
    worker_weights: dict[str, Positive] = {}  # by name; a worker that is not named has weight 1
    worker_class: ClassPath = "training.worker.Worker"  # that class or one derived from it
    host_key_policy: Literal["strict", "accept-new"] = "strict"
    bootstrap: bool = False  # send code to workers that have none or another version
    pip: PipSettings = PipSettings()
    login_seconds: Annotated[float, Field(ge=1, le=600)] = (
        30.0  # at most, for any one answer until a machine has let us in
    )
    heartbeat_seconds: Annotated[float, Field(ge=0.1, le=60)] = 2.0  # between two looks at a worker
    offline_seconds: Annotated[float, Field(ge=1, le=3600)] = 10.0  # of silence
    retry_seconds: Annotated[float, Field(ge=1, le=3600)] = 60.0  # at most, between two attempts to reach a worker
    lease_seconds: Annotated[float, Field(ge=10, le=86_400)] = 900.0

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        names = Counter(worker.name for worker in self.workers)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise ValueError(
                f"workers: each needs a name of its own, but {', '.join(twice)} names several; give them a `name`"
            )
        for first, second in _could_be_confused(self.workers):
            remedy = f"give one of them another `name`, or {first} `processes: 1`"
            raise ValueError(
                f"workers: a process of {first} could be called {second}, like the other machine; {remedy}"
            )
        for account in names.keys() & SEED_ACCOUNTS.values():
            raise ValueError(
                f"workers: {account} is the name under which the ledger has games that come from files; choose another"
            )
        if self.offline_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"offline_seconds ({self.offline_seconds:g}) must exceed heartbeat_seconds ({self.heartbeat_seconds:g})"
            )
        if self.enabled and not self.workers:
            add = f"{connector((info.context or {}).get('config'))} --add HOST USER"
            raise ValueError(
                f"workers: none are listed, but enabled is true; list machines there, or add one with {add}"
            )
        return self

    @property
    def unused_weights(self) -> str:
        """What is to be said of names in ``worker_weights`` that no worker has: removed ones keep their weight, if they
        come back.
        """
        names = {worker.name for worker in self.workers}
        unused = ", ".join(sorted(self.worker_weights.keys() - names))
        return (
            unused
            and f"distributed.worker_weights: no worker is called {unused}; the workers are: {', '.join(sorted(names)) or 'none'}"
        )


def _check_seed_games(sources: tuple[str, ...], game: str) -> None:
    """Refuse files of games that have nothing of ``game``."""
    if game not in SEED_ACCOUNTS:
        raise ValueError(
            f"training.window.seed_games: only {' and '.join(SEED_ACCOUNTS)} have files of games, and this run plays {game}"
        )
    for source in sources:
        for other in SEED_FILES.keys() - {game}:
            if source.lower().endswith(SEED_FILES[other]):
                raise ValueError(
                    f"training.window.seed_games: {source} has games of {other}, and this run plays {game}"
                )


class Settings(Section):
    """All that a run is told."""

    run: RunSettings
    game: GameSettings
    network: NetworkSettings = NetworkSettings()
    search: SearchSettings = SearchSettings()
    self_play: SelfPlaySettings = SelfPlaySettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    distributed: DistributedSettings = DistributedSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        endless = self.run.iterations is None and self.run.minutes is None
        if self.training.learning_rate_schedule == "cosine" and endless:
            raise ValueError(
                "training.learning_rate_schedule: cosine falls over the whole run, so it needs run.iterations or run.minutes"
            )
        if self.training.window.seed_games:
            _check_seed_games(self.training.window.seed_games, self.game.name)
        return self
