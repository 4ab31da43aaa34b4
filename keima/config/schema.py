"""The settings of a run: every key with its type, bounds and default.

Each section is a frozen pydantic model that rejects unknown keys and never converts types. ``keima.config.load`` reads
YAML into ``Settings``; configs/config.yaml explains every key to users. "auto" is resolved when the run starts, on the
machine where it starts.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WrapValidator,
    model_validator,
)

from keima.config.commands import cluster
from keima.config.hosts import EXAMPLE, hosts_of
from keima.config.own_modules import NAME as OWN_NAME
from keima.config.own_modules import is_own, keep_module

Auto = Literal["auto"]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Plies = Annotated[int, Field(ge=0, le=20)]
Scalar = bool | int | float | str
SEED_ACCOUNTS = {"chess": "pgn-files", "go": "sgf-files"}  # by game: the ledger's account of training.window.seed_games
MOST_NAMED = 12  # names in one message
SEED_FILES = {"chess": (".pgn", ".pgn.zst"), "go": (".sgf",)}  # by game: endings of these files


def _like(pattern: str, description: str) -> AfterValidator:
    """Text that matches ``pattern``; the error describes it in words."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"expected {description}, found {text!r}")
        return text

    return AfterValidator(check)


Device = Annotated[str, _like(r"auto|cpu|cuda(:[0-9]{1,3})?", "auto, cpu, cuda or a GPU such as cuda:1")]
Line = Annotated[str, Field(max_length=4096), _like(r"[^\x00-\x1f\x7f]+", "one line of text")]
Name = Annotated[
    str, _like(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "up to 64 letters, digits, '.', '_', '-', starting with no sign")
]
NetworkType = Annotated[
    str,
    _like(
        rf"resnet|bottleneck|spiking|{OWN_NAME.pattern}",
        "'resnet', 'bottleneck' or 'spiking', or a file at `module`",
    ),
]
Host = Annotated[str, _like(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,252}", "a host name or an IP address")]
User = Annotated[str, _like(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,127}", "a user name")]  # also in a domain: CORP\alice
Variable = Annotated[str, _like(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "the name of an environment variable")]
ClassPath = Annotated[str, _like(r"[^\W\d]\w*(\.[^\W\d]\w*)+", "a class as module.Class"), Field(max_length=300)]


SlurmWord = Annotated[str, Field(max_length=1000), _like(r"[^\s-]\S*", "one word")]
SlurmOption = Annotated[
    str, Field(max_length=1000), _like(r"--?[A-Za-z][^\x00-\x1f\x7f]*", "an option of sbatch, such as --nice=100")
]
SLURM_TIME = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
# Options of sbatch that are given by other settings, or by which jobs are found and watched.
SLURM_TAKEN = re.compile(
    r"--(array|job-name|parsable|wrap|wait|signal|requeue|no-requeue|output|error|open-mode|chdir|test-only|clusters)\b"
    r"|-[aJWoeDM]"
)
SLURM_NAME = "slurm"  # the workers are slurm-1, slurm-2 ...
SLURM_SEAT = re.compile(rf"{SLURM_NAME}(-[0-9]+)*")
RAY_WORKER = re.compile(r"ray(-.*)?")  # the workers are ray-1, ray-2 ...


def _tuple(value: Any) -> Any:
    """A list of YAML as a tuple, which frozen settings need."""
    return tuple(value) if isinstance(value, list) else value


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, strict types ("3" is not 3)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RunSettings(Section):
    """The run as a whole. It ends at the first of its limits; without any, when it is stopped."""

    name: Name
    directory: Line = "runs"  # the run writes everything to <directory>/<name>
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    iterations: Count | None = None
    minutes: Positive | None = None
    trackers: Annotated[tuple[Literal["wandb", "mlflow"], ...], BeforeValidator(_tuple)] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.trackers)) < len(self.trackers):
            raise ValueError("trackers: each at most once")
        return self


class GameSettings(Section):
    """The game and its options: a shipped game by its name, a user's file, or a game of OpenSpiel."""

    name: Name  # with ``module``: by its content
    module: Line | None = None  # a Python file, relative to the settings file
    options: dict[str, Scalar] = {}

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any, info: ValidationInfo) -> Any:
        if isinstance(given, dict) and "openspiel" in given:
            return _of_openspiel(given)
        return _with_own_name(given, "name", info)


def _of_openspiel(given: dict[str, Any]) -> dict[str, Any]:
    """``{openspiel: hex}`` written out."""
    if given.keys() != {"openspiel"}:
        raise ValueError("openspiel: write the parameters into the name, such as hex(board_size=5), without other keys")
    return {"name": "openspiel", "options": {"game": given["openspiel"]}}


def _with_own_name(given: Any, key: str, info: ValidationInfo) -> Any:
    """A section read from a settings file, with the user's file ``module`` in this machine's store and its name at
    ``key``; a section that comes from elsewhere has the name already.
    """
    if not isinstance(given, dict) or not isinstance(given.get("module"), str):
        return given
    name, config = given.get(key, ""), (info.context or {}).get("config")
    if is_own(str(name)) and config is None:
        return given
    if name and not is_own(str(name)):
        raise ValueError(f"either {key}, for what is shipped, or module, for a file of your own")
    path = Path(given["module"]).expanduser()
    path = path if config is None else (Path(config).parent / path).resolve()
    return given | {key: keep_module(path, expected=str(name)), "module": str(path)}


class NetworkSettings(Section):
    """The residual network (He et al. 2016, in AlphaZero's form) with optional global pooling (KataGo), the same with
    another tower, or its spiking form.
    """

    type: NetworkType = "resnet"  # or, with ``module``, a user's file by its content
    module: Line | None = None  # a Python file with a network, relative to the settings file
    options: dict[str, Scalar] = {}  # of that network, for which the other keys have no meaning
    blocks: Annotated[int, Field(ge=1, le=100)] = 6
    channels: Annotated[int, Field(ge=4, le=2048)] = 64
    global_pooling: bool = True
    squeeze_excitation: bool = False  # not of type spiking
    time_steps: Annotated[int, Field(ge=1, le=64)] | None = None  # only of type spiking; None: 4
    predict_reply: bool = False  # auxiliary heads, used in training only; not of type spiking
    predict_ownership: bool = False  # this and the next: only for Go and Connect Four
    predict_score: bool = False
    predict_future: bool = False  # only for games of two players whose observations begin with their pieces

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any, info: ValidationInfo) -> Any:
        return _with_own_name(given, "type", info)

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``build_network``, which describe the network in model files."""
        if is_own(self.type):
            return {"type": self.type, **self.options}
        return self.model_dump(exclude={"module", "options"})

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.options and not is_own(self.type):
            raise ValueError("options: only for a network of your own, which `module` names")
        heads = [name for name in type(self).model_fields if name.startswith("predict_")]
        if is_own(self.type) and any(getattr(self, name) for name in heads):
            raise ValueError(f"{', '.join(heads)}: a network of your own has no such heads")
        if self.time_steps is not None and self.type != "spiking":
            raise ValueError(f"time_steps: only for networks of type spiking, and this one has type {self.type}")
        if self.squeeze_excitation and self.type == "spiking":
            raise ValueError(f"squeeze_excitation: a network of type {self.type} has no such blocks")
        return self


class GumbelSettings(Section):
    """Settings of the Gumbel search (Danihelka et al. 2022); the defaults are the paper's."""

    considered_actions: Annotated[int, Field(ge=2, le=1024)] = 16
    c_visit: NotNegative = 50.0
    c_scale: Positive = 1.0
    noise: NotNegative = 1.0  # scale of the Gumbel noise at the root in self-play (gumbel_scale in DeepMind's mctx)


class ResignationSettings(Section):
    """Resignation in self-play."""

    enabled: bool = False
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.95  # resign when the root value is below minus this ...
    consecutive: Count = 3  # ... for this many consecutive moves of the player
    no_resign_fraction: Share = 0.1  # share of games played to the end, to count false resignations


class SearchSettings(Section):
    """Search in self-play. Defaults follow AlphaZero (Silver et al. 2018) and KataGo (Wu 2019)."""

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
    lookahead_plies: Plies = 0  # only in two-player games without chance
    match_lookahead_plies: Plies = 0
    match_policy_temperature: Positive = 1.0  # of the network's policy at every position; lc0 plays with 1.36
    # In matches and play, the most that a better score counts, in values, once the game is decided; only in games won
    # by area, with networks that predict the score. After KataGo's dynamic score utility, 0.3 in all positions.
    match_score_utility: Share = 0.5
    match_early_stop: bool = False  # in matches: stop once no other move can be visited as often; puct only
    subtree_reuse: bool = True
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0  # of points, per move; only in one-player games
    evaluate_afterstates: bool = False  # in games of chance: evaluate positions before a chance outcome, too
    temperature: NotNegative = 1.0
    temperature_final: NotNegative = 0.2
    temperature_halflife: Auto | Positive = "auto"  # plies; auto: the board's longer side
    opening_random_moves: NotNegative = 0.0  # mean number of opening plies drawn from the policy alone
    opening_even_share: Share = 0.0  # of these plies, drawn uniformly instead
    random_move_share: Annotated[float, Field(ge=0, le=0.5)] = (
        0.0  # of later plies: mean over games, each 0 to twice this
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
    """How games are spread over workers, concurrent games and network calls."""

    games_per_worker: Count = 200  # granted in advance, so that a worker never waits
    parallel_games: Auto | Count = "auto"
    batch_size: Auto | Count = "auto"  # positions in one network call
    workers: Auto | Count = "auto"  # processes on this machine; auto: one per core
    device: Auto | Literal["cpu"] = "auto"  # of these processes; auto: as training.device
    cache_positions: CountOrZero = 0
    flush_seconds: Positive = 30.0  # longest wait of a finished game for its batch to fill


class WindowSettings(Section):
    """The replay window: min_positions * (positions / min_positions) ** growth_exponent, at most max_positions."""

    min_positions: Count = 20_000  # no steps before
    max_positions: Count = 1_000_000
    growth_exponent: Share = 0.65  # KataGo's power law; 0: constant size; 1: keeps everything
    seed_games: Annotated[tuple[Line, ...], BeforeValidator(_tuple)] = ()  # PGN or SGF files, learned before all others

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min_positions > self.max_positions:
            raise ValueError(
                f"min_positions ({self.min_positions}) must not exceed max_positions ({self.max_positions})"
            )
        return self


class LearnerSettings(Section):
    """The processes that train."""

    ranks: Annotated[int, Field(ge=1, le=1024)] = 1


class TrainingSettings(Section):
    """Training: batches, optimizer, replay window, checkpoints."""

    asynchronous: bool = True
    device: Device = "auto"  # of the learner, the evaluations and the workers here; auto: GPUs, if there are any
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = 256
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 1e-3
    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: CountOrZero = 100
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of sgd
    weight_decay: Share = 1e-4
    clip_norm: Positive = 1.0
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999  # per step; 0: self-play uses the raw weights
    value_weight: NotNegative = 1.0
    ownership_weight: NotNegative = 1.5
    future_weight: NotNegative = 1.5
    future_plies: Annotated[int, Field(ge=1, le=1000)] = 6
    td_lambda: Share = 1.0  # 1: the outcome; less: also later root values
    mixed_precision: Auto | bool = "auto"
    symmetries: bool = True
    policy_surprise_weight: Share = 0.5
    samples_per_position: Annotated[float, Field(gt=0, le=100)] = 4.0
    games_per_iteration: Count = 500
    steps_per_model: Count | None = None  # publish after this many steps, too; None: once per iteration
    window: WindowSettings = WindowSettings()
    checkpoint_every: Count = 1  # iterations
    keep_checkpoints: Count = 3
    threads: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"  # CPU threads of all ranks here together
    learner: LearnerSettings = LearnerSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.batch_size > self.window.min_positions:
            raise ValueError(
                f"batch_size ({self.batch_size}) must not exceed window.min_positions ({self.window.min_positions})"
            )
        if self.learner.ranks > self.batch_size:
            raise ValueError(f"learner.ranks ({self.learner.ranks}) must not exceed batch_size ({self.batch_size})")
        if self.learner.ranks > 1 and ":" in self.device:
            raise ValueError(
                f"device ({self.device}) is one GPU, but learner.ranks ({self.learner.ranks}) need one each"
            )
        if self.steps_per_model and not self.asynchronous:
            raise ValueError(
                "steps_per_model needs asynchronous: true; otherwise one model plays all games of an iteration"
            )
        return self


class SprtSettings(Section):
    """The sequential probability ratio test of gating: is the candidate elo1 stronger rather than elo0?"""

    elo0: Annotated[float, Field(ge=-1000, le=1000)] = 0.0
    elo1: Annotated[float, Field(ge=-1000, le=1000)] = 30.0
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # probability of accepting one that is only elo0 stronger
    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # probability of rejecting one that is elo1 stronger

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.elo0 >= self.elo1:
            raise ValueError(f"elo0 ({self.elo0}) must be below elo1 ({self.elo1})")
        return self


class EvaluationSettings(Section):
    """How and how often the strength of the network is measured."""

    every: CountOrZero = 1  # iterations; 0: never
    num_simulations: Annotated[int, Field(ge=1, le=100_000)] = 128
    perfect_play: bool = False  # only for games with an exact solver
    positions: Count = 1000  # solved positions for perfect_play
    rating_games: CountOrZero = 100  # per evaluation, against the anchor and earlier versions; 0 in one-player games
    score_games: CountOrZero = 0  # per evaluation, only in one-player games
    gating: Literal["none", "sprt"] = "none"
    gating_games: Annotated[int, Field(ge=2)] = 200  # reject a candidate that is undecided after this many
    sprt: SprtSettings = SprtSettings()


def first_label(host: str) -> str:
    """The default name of a worker: the first label of its host name, or its whole IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.split(".")[0]
    return re.sub("[:%]", "-", host).strip("-")  # fe80::1%eth0: an address with its link


class WorkerDefaults(Section):
    """What a worker has that does not say otherwise. None means: as in ``~/.ssh/config`` and the agent."""

    user: User | None = None  # finally: the name of the local user
    key_path: Line | None = None  # private key file on the main node
    gpu_id: CountOrZero | None = 0  # on a machine without any, and with null, the CPU plays
    gpu_ids: Annotated[tuple[CountOrZero, ...], Field(min_length=1), BeforeValidator(_tuple)] | None = (
        None  # instead of gpu_id
    )
    processes: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"  # per GPU, else in all; auto: 1, or one per core
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None  # finally: 22
    directory: Line = "~/keima"  # on the worker
    python: Line = "python3"  # on the worker
    proxy_jump: Line | None = None  # [user@]host[:port], as ssh has it
    parallel_games: Auto | Count = "auto"
    env: dict[Variable, Line] = {}
    group: Name | None = None  # a name for several workers, in commands


class WorkerSettings(WorkerDefaults):
    """One machine that plays games, reached over SSH with a key; passwords are not supported.

    In a list of workers, ``hosts`` instead of ``host`` stands for one such machine per host; see ``machines_of``.
    """

    host: Host
    hosts: Annotated[None, Field(exclude=True)] = None
    name: Name = ""

    @model_validator(mode="before")
    @classmethod
    def _name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" not in values and isinstance(values.get("host"), str):
            return {**values, "name": first_label(values["host"])}
        return values

    def over(self, defaults: WorkerDefaults) -> Self:
        """This machine in a list with these defaults."""
        return self.model_validate(_with_defaults(self.model_dump(exclude_unset=True), defaults))


def _with_defaults(values: dict[str, Any], defaults: WorkerDefaults) -> dict[str, Any]:
    """An entry's values, and the defaults of those that it leaves out; ``gpu_id`` also replaces ``gpu_ids``."""
    given = defaults.model_dump(exclude_unset=True)
    if "gpu_id" in values:
        given.pop("gpu_ids", None)
    return {**given, **values}


def machines_of(
    entry: Any, validate: Callable[[Any], WorkerSettings], info: ValidationInfo
) -> tuple[WorkerSettings, ...]:
    """The machines of an entry in a list of workers: one, or one for each of its ``hosts``.

    Raises:
        ValueError: the entry has no valid hosts.
    """
    if not isinstance(entry, dict):
        return (validate(entry),)
    values = _with_defaults(entry, info.data.get("defaults", WorkerDefaults()))
    hosts = values.pop("hosts", None)
    if hosts is None:
        host = values.get("host")
        if isinstance(host, str) and "[" in host:
            raise ValueError(f"a range is written as `hosts`, not `host`: hosts: {host}")
        return (validate(values),)
    if not isinstance(hosts, str):
        raise ValueError(f"expected hosts {EXAMPLE}, found {hosts!r}")
    for key in ("host", "name"):
        if values.get(key):
            raise ValueError(f"`{key}` does not go with `hosts`: each machine is named after its host")
    return tuple(validate({**values, "host": host}) for host in hosts_of(hosts))


def listed(names: Sequence[str]) -> str:
    """Names in words; of many, the first."""
    more = len(names) - MOST_NAMED
    return f"{', '.join(names[:MOST_NAMED])} and {more} more" if more > 0 else ", ".join(names) or "none"


def _flat(several: Any) -> tuple[WorkerSettings, ...]:
    """The machines of all entries, one after the other."""
    return tuple(machine for machines in several for machine in machines)


def _could_be_confused(workers: tuple[WorkerSettings, ...]) -> Iterator[tuple[str, str]]:
    """Machines whose numbered processes could have the name of another machine, with that machine."""
    several = {worker.name for worker in workers if len(worker.gpu_ids or ()) > 1 or worker.processes != 1}
    for worker in workers:
        numbered = re.fullmatch(r"(.+)-[1-9][0-9]*", worker.name)
        if numbered and numbered[1] in several:
            yield numbered[1], worker.name


class PipSettings(Section):
    """Package sources of bootstrap, for machines without direct access to the Python Package Index."""

    index_url: Line | None = None  # replaces the Python Package Index
    extra_index_url: Line | None = None  # additional index
    proxy: Line | None = None  # scheme://[user:password@]host:port
    torch_index: Line | None = None  # for torch only, such as PyTorch's packages without CUDA
    wheels: Line | None = None  # local folder with all packages; workers download nothing

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables for pip and setup.sh."""
        named = {
            "PIP_INDEX_URL": self.index_url,
            "PIP_EXTRA_INDEX_URL": self.extra_index_url,
            "PIP_PROXY": self.proxy,
            "TORCH_INDEX": self.torch_index,
        }
        return {name: value for name, value in named.items() if value}


def slurm_seconds(text: str) -> int:
    """The seconds of a time as Slurm writes it.

    Raises:
        ValueError: it is none.
    """
    found = SLURM_TIME.fullmatch(text)
    if not found:
        raise ValueError(f"expected a time as Slurm writes it, such as 4:00:00 or 2-12:00:00, found {text!r}")
    days, *parts = (int(part) if part else None for part in found.groups())
    numbers = [part for part in parts if part is not None]
    if days is None and len(numbers) < 3:  # minutes, or minutes and seconds
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _slurm_time(text: str) -> str:
    slurm_seconds(text)
    return text


class SlurmSettings(Section):
    """Self-play in jobs of a Slurm cluster: an array of jobs with one worker each."""

    count: Annotated[int, Field(ge=1, le=1000)]  # jobs, each with one worker
    partition: SlurmWord | None = None  # this and all that is None: as Slurm has it by default
    time: Annotated[str, AfterValidator(_slurm_time)] | None = None  # limit of a job; a new one follows
    gpus: Annotated[int, Field(ge=0, le=1)] = 0  # per job
    gpu_type: SlurmWord | None = None
    cpus: Annotated[int, Field(ge=1, le=1024)] = 1  # per job
    memory: Annotated[str, _like(r"[1-9][0-9]*[KMGT]?", "memory as Slurm writes it, such as 4G")] | None = None
    account: SlurmWord | None = None
    qos: SlurmWord | None = None
    constraint: SlurmWord | None = None
    options: Annotated[tuple[SlurmOption, ...], BeforeValidator(_tuple)] = ()  # more options of sbatch
    setup: Annotated[tuple[Line, ...], BeforeValidator(_tuple)] = ()  # shell lines of a job before its worker starts
    directory: Line | None = None  # shared by all nodes; None: in the run's folder
    python: Line | None = None  # on the nodes; None: the interpreter of the Coach
    warning_seconds: Annotated[int, Field(ge=10, le=3600)] = 60  # from the warning to the time limit
    poll_seconds: Annotated[float, Field(ge=1, le=600)] = 10.0  # between two looks at the queue

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.time and slurm_seconds(self.time) < 2 * self.warning_seconds:
            raise ValueError(f"time ({self.time}) must be at least twice warning_seconds ({self.warning_seconds})")
        if self.gpu_type and not self.gpus:
            raise ValueError(f"gpu_type ({self.gpu_type}) needs gpus: 1")
        for option in self.options:
            if taken := SLURM_TAKEN.match(option):
                raise ValueError(f"options: {taken[0]} is not yours to set: the jobs of a run are found by it")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the workers."""
        return tuple(f"{SLURM_NAME}-{number}" for number in range(1, self.count + 1))


class RaySettings(Section):
    """Workers in a Ray cluster: each has a seat, which is an actor."""

    address: Annotated[str, _like(r"auto|[A-Za-z0-9_.:\[\]%-]+:[0-9]{1,5}", "'auto' or host:port of the head node")] = (
        "auto"
    )
    seats: Auto | Annotated[int, Field(ge=1, le=4096)] = "auto"  # auto: as many as the cluster has room for
    num_cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0  # of each seat
    num_gpus: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of a GPU for each seat; 0: seats play on CPUs
    directory: Line = "~/keima"  # on each node


class DistributedSettings(Section):
    """Self-play on other machines: over SSH, in jobs of a Slurm cluster, or in a Ray cluster."""

    enabled: bool = False
    defaults: WorkerDefaults = WorkerDefaults()
    workers: Annotated[
        tuple[Annotated[WorkerSettings, WrapValidator(machines_of)], ...],
        BeforeValidator(_tuple),
        AfterValidator(_flat),
    ] = ()
    slurm: SlurmSettings | None = None
    ray: RaySettings | None = None
    compression: bool = True
    batch_size: Annotated[int, Field(ge=1, le=10_000)] = 100  # games per transfer
    sync_interval: Count = 50  # games between model syncs
    load_balancing: bool = True
    worker_weights: dict[str, Positive] = {}  # by name; a worker that is not named has weight 1
    worker_class: ClassPath = "keima.worker.Worker"  # or a subclass
    host_key_policy: Literal["strict", "accept-new"] = "strict"
    bootstrap: bool = False  # install this code on workers that lack it
    pip: PipSettings = PipSettings()
    login_seconds: Annotated[float, Field(ge=1, le=600)] = 30.0  # timeout of each answer until the login succeeds
    heartbeat_seconds: Annotated[float, Field(ge=0.1, le=60)] = 2.0  # between checks of a worker
    offline_seconds: Annotated[float, Field(ge=1, le=3600)] = 10.0  # of silence
    retry_seconds: Annotated[float, Field(ge=1, le=3600)] = 60.0  # longest pause between reconnection attempts
    lease_seconds: Annotated[float, Field(ge=10, le=86_400)] = 900.0

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        names = Counter(worker.name for worker in self.workers)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise ValueError(
                f"workers: names must be unique, but several are called {listed(twice)}; give each a `name`"
            )
        for group in sorted({worker.group for worker in self.workers if worker.group} & names.keys()):
            raise ValueError(f"workers: {group} is the name of a group and of a worker; rename one of them")
        for first, second in _could_be_confused(self.workers):
            remedy = f"give one another `name`, or give {first} `processes: 1`"
            raise ValueError(f"workers: a process of {first} could have the name of machine {second}; {remedy}")
        for name in sorted(name for name in names if self.slurm and SLURM_SEAT.fullmatch(name)):
            raise ValueError(f"workers: {name} is called like the workers of Slurm; give it another `name`")
        for name in sorted(name for name in names if self.ray and RAY_WORKER.fullmatch(name)):
            raise ValueError(f"workers: {name} is called like the workers of Ray; give it another `name`")
        for account in names.keys() & SEED_ACCOUNTS.values():
            raise ValueError(f"workers: {account} is the ledger's account of games from files; choose another name")
        if self.offline_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"offline_seconds ({self.offline_seconds:g}) must exceed heartbeat_seconds ({self.heartbeat_seconds:g})"
            )
        if self.enabled and not self.has_machines:
            add = cluster("add HOST USER", (info.context or {}).get("config"))
            raise ValueError(f"workers: the list is empty, but enabled is true; add a machine with {add}")
        return self

    @property
    def has_machines(self) -> bool:
        """Whether any machine is named on which workers can play."""
        return bool(self.workers) or self.slurm is not None or self.ray is not None

    @property
    def unused_weights(self) -> str:
        """A warning about names in ``worker_weights`` that no worker has; empty where there are none.

        Removed workers keep their weight for when they come back, so this is no error.
        """
        names = {worker.name for worker in self.workers} | ({SLURM_NAME} if self.slurm else set())
        unused = ", ".join(
            sorted(name for name in self.worker_weights.keys() - names if not (self.ray and RAY_WORKER.fullmatch(name)))
        )
        known = listed(sorted(names))
        return unused and f"distributed.worker_weights: no worker is called {unused}; the workers are: {known}"


def _check_seed_games(sources: tuple[str, ...], game: str) -> None:
    """Reject files of other games than ``game``."""
    if game not in SEED_ACCOUNTS:
        raise ValueError(
            f"training.window.seed_games: only for {' and '.join(SEED_ACCOUNTS)}, and this run plays {game}"
        )
    for source in sources:
        for other in SEED_FILES.keys() - {game}:
            if source.lower().endswith(SEED_FILES[other]):
                raise ValueError(
                    f"training.window.seed_games: {source} holds games of {other}, and this run plays {game}"
                )


class Settings(Section):
    """All settings of a run."""

    run: RunSettings
    game: GameSettings
    network: NetworkSettings = NetworkSettings()
    search: SearchSettings = SearchSettings()
    self_play: SelfPlaySettings = SelfPlaySettings()
    training: TrainingSettings = TrainingSettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    distributed: DistributedSettings = DistributedSettings()

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The names of the users' files that this run needs."""
        return tuple(name for name in (self.game.name, self.network.type) if is_own(name))

    @model_validator(mode="after")
    def _check(self) -> Self:
        endless = self.run.iterations is None and self.run.minutes is None
        if self.training.learning_rate_schedule == "cosine" and endless:
            raise ValueError(
                "training.learning_rate_schedule: cosine decays over the run, so it needs run.iterations or run.minutes"
            )
        if self.training.window.seed_games:
            _check_seed_games(self.training.window.seed_games, self.game.name)
        return self
