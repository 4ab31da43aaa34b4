"""Compare what networks with different towers learn from one set of games, at equal evaluation time.

    python benchmarks/strength/trunks.py runs/trunks --play models/go9.safetensors --play-minutes 2 --device cuda
    python benchmarks/strength/trunks.py runs/go9/games --steps 2000 --seeds 1 2 3 4 5
    python benchmarks/strength/trunks.py runs/trunks --networks resnet-3x64 resnet-6x64 bottleneck-4x96-se --times
    python benchmarks/strength/trunks.py runs/trunks --show          the table of finished trainings, from the JSON

The games are files of batches in a folder. --play lets a model play them against itself first, if there are none yet:
in --processes processes, on the device. Every tenth game is held out. Each network, TYPE-BLOCKSxCHANNELS with -se for
squeeze-and-excitation, learns the others with each of the seeds, for --steps steps with the auxiliary heads that the
game has; --processes trainings run at a time, and all networks of a seed come before the next seed.

The table has each network's time for a position: on one thread of the CPU as games evaluate it, the same by plain torch
for all, so that no tower is judged by who wrote operators for it, and both on the GPU. It has its averaged weights'
losses on the held-out games, as means over the seeds, and how much its loss, policy and value together, is above that
of a plain residual network of the same time, for each of the times: the plain networks' losses are interpolated in the
logarithm of the time, seed by seed, so they must be of several sizes and bracket the others. Intervals are 95 % over
the seeds, by Student's distribution; all networks are measured on the same games, which the intervals do not cover.

Rows are printed and the JSON is written as they come, so a run that is cut off has lost only its last trainings.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed.evaluator import evaluation_rates
from benchmarks.speed.self_play import Session
from keima import batch_of
from keima.base.files import write_atomically
from keima.base.intervals import mean_margin
from keima.base.random import seed_stream
from keima.config.flags import number, whole
from keima.config.sections.network import NetworkSettings
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import TrainingSettings
from keima.data.batch_file import SUFFIX
from keima.data.records import GameBatch, GameRecord, decode, encode
from keima.games import Game, load_game
from keima.learning.learner import Learner, TensorBatch, to_tensors
from keima.networks.architectures.layers import log_policies
from keima.networks.files.model_file import canary_positions
from keima.networks.inference.cuda import Forward, fused_forward
from keima.networks.inference.evaluator import Evaluator, fast_dtype, pick_device, prepared_network
from keima.networks.network import build_network, seed_weights
from keima.networks.policy_value import network_of
from keima.play.arena.players import read_model
from keima.replay.window import ReplayWindow

NETWORKS = (  # for 9x9 Go: the plain ones bracket the others' times on a CPU with AVX2
    "resnet-2x64",
    "resnet-4x64",
    "resnet-6x64",
    "resnet-8x64",
    "resnet-4x64-se",
    "bottleneck-3x96",
    "bottleneck-3x96-se",
)
HELD_OUT = 10  # one of this many games
BATCH_GAMES = 100
SEARCH = SearchSettings(num_simulations=64, cheap_simulations=16, full_search_probability=0.5)
PLIES_PER_OPENING_MOVE = 40  # of the longest game: in 9x9 Go four moves of the opening are random, in Connect Four one
PARALLEL_GAMES = {"cpu": 64, "cuda": 512}
CACHE_POSITIONS = 100_000
AT_ONCE = 4096  # positions that are made, or measured, at a time
CHECK_STEPS = 50  # between two looks at the clock
GRACE_SECONDS = 60.0  # for which results are awaited after the deadline
ROUNDS, ROUND_SECONDS = 7, 0.15
REPLAYS = 50  # of a CUDA graph in one round
WAYS = {
    "played": "CPU, as played",
    "plain": "CPU, plain torch",
    "gpu_played": "GPU, as played",
    "gpu_plain": "GPU, plain torch",
}


@dataclass(frozen=True)
class Candidate:
    """A network to compare."""

    name: str  # TYPE-BLOCKSxCHANNELS or TYPE-BLOCKSxCHANNELS-se

    @property
    def settings(self) -> dict[str, Any]:
        """Its section of the settings.

        Raises:
            ValueError: its name is malformed.
        """
        kind, size, *options = self.name.split("-")
        blocks, channels = map(int, size.split("x"))
        if options not in ([], ["se"]):
            raise ValueError(f"{self.name}: the only option is -se")
        return {"type": kind, "blocks": blocks, "channels": channels, "squeeze_excitation": bool(options)}

    @property
    def plain(self) -> bool:
        """Whether it is a plain residual network, with which the others are compared."""
        return self.settings["type"] == "resnet" and not self.settings["squeeze_excitation"]

    def network(self, game: Game) -> NetworkSettings:
        """Its settings with the auxiliary heads that the game has."""
        score = game.final_score is not None
        reply = game.num_players == 2 and not game.num_outcomes
        return NetworkSettings(**self.settings, predict_reply=reply, predict_ownership=score, predict_score=score)

    def build(self, game: Game, seed: int) -> nn.Module:
        """A new network."""
        seed_weights(seed_stream(seed, "network"))
        return build_network(game, **self.network(game).arguments())


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a candidate costs: microseconds of an evaluation by the ways of ``WAYS``; None: it was not measured."""

    name: str
    parameters: int
    played: float
    plain: float
    gpu_played: float | None
    gpu_plain: float | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a candidate has learned with one seed."""

    name: str
    seed: int
    policy_loss: float  # nats, on held-out positions
    value_loss: float
    train_loss: float  # all losses together, in the last tenth of the steps
    seconds: float

    @property
    def loss(self) -> float:
        """Policy and value together."""
        return self.policy_loss + self.value_loss


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How all candidates train."""

    folder: Path
    device: str
    steps: int
    batch_size: int
    learning_rate: float
    optimizer: str
    positions: int  # at most
    deadline: float  # time.time() after which nothing goes on


# 1. The games.


def play_games(model: Path, folder: Path, seconds: float, device: str, part: int) -> int:
    """Write games that a model plays against itself for ``seconds`` after its first evaluation; returns their number.

    Args:
        part: of several processes, which play different games.
    """
    torch.set_num_threads(1)
    description = read_model(model).description
    game = load_game(description.game, **description.options)
    parallel = PARALLEL_GAMES[pick_device(device).type]
    evaluate = Evaluator(read_model(model).build(game), game, device=device, max_batch=parallel)
    settings = SEARCH.model_copy(update={"opening_random_moves": game.max_plies / PLIES_PER_OPENING_MOVE})
    seeds = (seed_stream("trunks", part, number) for number in count())
    session = Session(game, evaluate, settings, parallel, cache_positions=CACHE_POSITIONS, seeds=seeds)
    records, written = session.advance(), 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        records += session.advance()
        if len(records) >= BATCH_GAMES:
            written += write_games(game, records, folder, part, written)
            records = list[GameRecord]()
    return written + (write_games(game, records, folder, part, written) if records else 0)


def write_games(game: Game, records: Sequence[GameRecord], folder: Path, part: int, first: int) -> int:
    """Write a file of games; returns their number."""
    batch = batch_of(game, records, run_id="trunks", worker=f"process{part}", first_game=first)
    write_atomically(folder / f"{batch.batch_id}{SUFFIX}", encode(batch))
    return len(records)


def read_batches(folder: Path) -> list[GameBatch]:
    """The files of games in a folder, in the order of their names.

    Raises:
        ValueError, OSError: there are none, or one is damaged.
    """
    batches = [decode(path.read_bytes()) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    if not batches:
        raise ValueError(f"{folder} has no files of games (*{SUFFIX}); let a model play some: --play MODEL")
    return batches


def split_games(game: Game, batches: Sequence[GameBatch]) -> tuple[list[GameBatch], list[GameBatch]]:
    """The games to learn, and those held out."""
    records = [batch.game_record(index) for batch in batches for index in range(batch.num_games)]
    learned = [record for index, record in enumerate(records) if index % HELD_OUT]
    return [batch_of(game, learned)], [batch_of(game, records[::HELD_OUT])]


# 2. The positions, on the device.


class Positions:
    """All positions of some games, on a device, from which batches are drawn without the CPU.

    Args:
        game: the game.
        batches: its games.
        network: whose auxiliary heads decide which targets there are.
        device: where they are kept, in 16 bits.
        most: positions, the newest of the games.
    """

    def __init__(
        self, game: Game, batches: Sequence[GameBatch], network: NetworkSettings, device: torch.device, most: int
    ) -> None:
        window = ReplayWindow(game, capacity_positions=sum(batch.num_positions for batch in batches), network=network)
        for batch in batches:
            window.add(batch)
        places = window.to_learn_from()[-most:]
        parts = [
            to_tensors(window.take(rows, np.zeros(len(rows), np.int64)), device)
            for rows in np.split(places, range(AT_ONCE, len(places), AT_ONCE))
        ]
        self._rows = {
            field.name: torch.cat([shortened(getattr(part, field.name)) for part in parts])
            for field in fields(TensorBatch)
        }
        self._points = torch.from_numpy(game.point_symmetries).long().to(device)
        self._actions = torch.from_numpy(game.action_symmetries).long().to(device)
        self._device = device

    def __len__(self) -> int:
        return len(self._rows["values"])

    def take(self, rows: Tensor, symmetries: Tensor) -> TensorBatch:
        """The positions ``[N]``, each under a symmetry ``[N]`` of the game."""
        points, actions = self._points[symmetries], self._actions[symmetries]
        chosen = {name: column[rows].float() for name, column in self._rows.items()}
        observations = chosen["observations"]
        turned = observations.flatten(2).gather(2, points[:, None].expand(-1, observations.shape[1], -1))
        chosen["observations"] = turned.view_as(observations).contiguous(memory_format=torch.channels_last)
        for name in ("policies", "legal", "replies"):
            if chosen[name].shape[1]:
                chosen[name] = torch.zeros_like(chosen[name]).scatter(1, actions, chosen[name])
        if chosen["ownership"].shape[1]:
            chosen["ownership"] = chosen["ownership"].gather(1, points)
        return TensorBatch(**chosen | {"legal": chosen["legal"] > 0})

    def draw(self, number: int, generator: torch.Generator) -> TensorBatch:
        """``number`` positions at random, each under a random symmetry; the generator is of the device."""
        rows, symmetries = (
            torch.randint(most, (number,), device=self._device, generator=generator)
            for most in (len(self), len(self._points))
        )
        return self.take(rows, symmetries)

    def in_order(self) -> Iterator[TensorBatch]:
        """All positions as they were played."""
        for rows in torch.arange(len(self), device=self._device).split(AT_ONCE):
            yield self.take(rows, torch.zeros_like(rows))


def shortened(column: Tensor) -> Tensor:
    """Numbers of a position as they are kept: observations and policies in 16 bits."""
    return column.half() if column.is_floating_point() and column.ndim > 1 else column


# 3. Training, in processes of their own.


@dataclass(frozen=True)
class Lessons:
    """What a process trains on."""

    game: Game
    plan: Plan
    learned: Positions
    held_out: Positions


@cache
def lessons_of(plan: Plan) -> Lessons:
    """The positions of a plan's games, once for each process."""
    batches = read_batches(plan.folder)
    game, device = load_game(batches[0].game, **batches[0].options), pick_device(plan.device)
    network = Candidate(NETWORKS[0]).network(game)
    learned, held_out = (Positions(game, part, network, device, plan.positions) for part in split_games(game, batches))
    return Lessons(game, plan, learned, held_out)


def train(plan: Plan, job: tuple[Candidate, int]) -> Outcome | str:
    """Train a candidate with a seed, on one thread; the text says why there is no outcome."""
    candidate, seed = job
    torch.set_num_threads(1)
    try:
        return learn(candidate, seed, lessons_of(plan)) or f"{candidate.name}, seed {seed}: no time was left"
    except Exception as error:  # the others shall run all the same
        return f"{candidate.name}, seed {seed}: {type(error).__name__}: {error}"


def learn(candidate: Candidate, seed: int, lessons: Lessons) -> Outcome | None:
    """What a candidate learns from the lessons; None: there was no time left."""
    plan, began = lessons.plan, time.perf_counter()
    settings = TrainingSettings(
        device=plan.device,
        batch_size=plan.batch_size,
        learning_rate=plan.learning_rate,
        learning_rate_schedule="cosine",
        optimizer=plan.optimizer,  # type: ignore[arg-type]
        ema_decay=0.995,
    )
    learner = Learner(candidate.build(lessons.game, seed), settings)
    generator = torch.Generator(learner.device).manual_seed(seed)
    last = list[Tensor]()
    for step in range(plan.steps):
        if step % CHECK_STEPS == 0 and time.time() > plan.deadline:
            return None
        report = learner.descend(lessons.learned.draw(plan.batch_size, generator), progress=step / plan.steps)
        if 10 * step >= 9 * (plan.steps - 1):
            last.append(report.figures["loss"])
    policy_loss, value_loss = held_out_losses(learner, lessons.held_out)
    return Outcome(
        name=candidate.name,
        seed=seed,
        policy_loss=policy_loss,
        value_loss=value_loss,
        train_loss=float(torch.stack(last).mean()),
        seconds=time.perf_counter() - began,
    )


@torch.no_grad()
def held_out_losses(learner: Learner, positions: Positions) -> tuple[float, float]:
    """The averaged network's policy and value loss, in nats."""
    network = learner.average.network
    totals = torch.zeros(3, dtype=torch.float64)
    for batch in positions.in_order():
        with learner.update_step.autocast:
            logits, value_logits = network(batch.observations)
        each = -(batch.policies * log_policies(logits, batch.legal)).sum(1) * batch.policy_mask
        value_loss = network_of(network).value.loss(value_logits.float(), batch.values)
        totals += torch.stack([each.sum(), len(each) * value_loss, batch.policy_mask.sum()]).double().cpu()
    return float(totals[0] / totals[2]), float(totals[1] / len(positions))


# 4. Evaluation times.


def costs_of(candidates: Sequence[Candidate], game: Game, batch: int, device: str, gpu_batch: int) -> list[Costs]:
    """The costs of all candidates on one thread and, if the device is a GPU, there; their rounds alternate."""
    torch.set_num_threads(1)
    networks = [candidate.build(game, 1).eval() for candidate in candidates]
    observations = canary_positions(game, max(batch, gpu_batch))
    ways = [
        Evaluator(network, game, device="cpu", max_batch=batch, fused=fused)
        for fused in (True, False)
        for network in networks
    ]
    rates = evaluation_rates(list(ways), observations[:batch], ROUNDS, ROUND_SECONDS)
    where = pick_device(device)
    return [
        Costs(
            name=candidate.name,
            parameters=sum(
                parameter.numel() for name, parameter in network.named_parameters() if "auxiliary" not in name
            ),
            played=1e6 / played,
            plain=1e6 / plain,
            gpu_played=gpu_microseconds(network, observations[:gpu_batch], where, fused=True),
            gpu_plain=gpu_microseconds(network, observations[:gpu_batch], where, fused=False),
        )
        for candidate, network, played, plain in zip(
            candidates, networks, rates[: len(networks)], rates[len(networks) :], strict=True
        )
    ]


def gpu_microseconds(
    network: nn.Module, observations: NDArray[np.float32], device: torch.device, *, fused: bool
) -> float | None:
    """The median time of a position on a GPU; None on a CPU, or if the network does not work there.

    Args:
        fused: whether to use cuDNN's fused kernels, if they can compute the network.
    """
    if device.type != "cuda":
        return None
    dtype = fast_dtype(device)
    module = prepared_network(network, device).to(device)
    inputs = torch.from_numpy(observations).to(device, dtype).contiguous(memory_format=torch.channels_last)
    try:
        forward = fused_forward(module, observations.shape[1:], device, dtype) if fused else None
        if forward is None:
            forward = module.to(dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return graph_microseconds(forward, inputs, device)
    except RuntimeError as error:  # the trainings shall run all the same
        print(f"On the GPU: {type(error).__name__}: {error}", flush=True)
        return None


def graph_microseconds(forward: Forward, inputs: Tensor, device: torch.device) -> float:
    """The median time of a position in a captured CUDA graph, without copies to and from the GPU."""
    side, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.inference_mode():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward(inputs)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, stream=side):
            forward(inputs)
        measured = list[float]()
        for _ in range(ROUNDS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(REPLAYS):
                graph.replay()
            end.record()
            end.synchronize()
            measured.append(1000 * begin.elapsed_time(end) / REPLAYS / len(inputs))
    return statistics.median(measured)


# 5. The table.


def with_interval(values: Sequence[float], *, signed: bool = False) -> str:
    """The mean, and its 95 % interval if there are two or more values."""
    if not values:
        return "–"
    margin = mean_margin(np.array(values, np.float64))
    mean = f"{statistics.fmean(values):{'+' if signed else ''}.4f}"
    return mean if margin is None else f"{mean} ± {margin:.4f}"


def above_plain(costs: Costs, way: str, known: Sequence[Costs], losses: dict[tuple[str, int], float]) -> list[float]:
    """By seed, the loss of a candidate minus that of a plain network of the same time; none outside their range.

    Args:
        way: by which the time is measured.
        known: the costs of all candidates.
        losses: by candidate and seed.
    """
    mine, differences = getattr(costs, way), list[float]()
    if mine is None:
        return []
    for seed in sorted({seed for name, seed in losses if name == costs.name}):
        plain = sorted(
            (math.log(getattr(each, way)), losses[each.name, seed])
            for each in known
            if Candidate(each.name).plain and (each.name, seed) in losses
        )
        if len(plain) > 1 and plain[0][0] <= math.log(mine) <= plain[-1][0]:
            times, of_plain = zip(*plain, strict=True)
            differences.append(losses[costs.name, seed] - float(np.interp(math.log(mine), times, of_plain)))
    return differences


def table(known: Sequence[Costs], outcomes: Sequence[Outcome]) -> str:
    """Everything as Markdown."""
    ways = [way for way in WAYS if any(getattr(costs, way) is not None for costs in known)]
    losses = {(outcome.name, outcome.seed): outcome.loss for outcome in outcomes}
    heads = ["network", "parameters", *(f"{WAYS[way]}, µs" for way in ways), "seeds", "policy loss", "value loss"]
    heads += [f"above plain: {WAYS[way]}" for way in ways]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for costs in known:
        mine = [outcome for outcome in outcomes if outcome.name == costs.name]
        cells = [costs.name, f"{costs.parameters:,}"]
        cells += ["–" if getattr(costs, way) is None else f"{getattr(costs, way):.2f}" for way in ways]
        cells += [str(len(mine)), with_interval([outcome.policy_loss for outcome in mine])]
        cells += [with_interval([outcome.value_loss for outcome in mine])]
        plain = Candidate(costs.name).plain
        cells += ["" if plain else with_interval(above_plain(costs, way, known, losses), signed=True) for way in ways]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


# 6. The program.


def play_all(arguments: argparse.Namespace) -> None:
    """Let the model play, in all processes, if the folder has no games."""
    if any(arguments.folder.glob(f"*{SUFFIX}")):
        print(f"{arguments.folder} has games already: none are played", flush=True)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rest = (arguments.play, arguments.folder, 60 * arguments.play_minutes, arguments.play_device or arguments.device)
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        played = pool.map(partial(play_games, *rest), range(arguments.processes), chunksize=1)
    print(f"{sum(played):,} games played", flush=True)


def outcomes_of(candidates: Sequence[Candidate], seeds: Sequence[int], plan: Plan, processes: int) -> Iterator[Outcome]:
    """All trainings that succeed before the deadline, as they end; the others are named."""
    jobs = [(candidate, seed) for seed in seeds for candidate in candidates]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.imap_unordered(partial(train, plan), jobs)
        for _ in jobs:
            try:
                result = results.next(plan.deadline + GRACE_SECONDS - time.time())
            except multiprocessing.TimeoutError:
                print("No more results came: a process has ended, or is too slow", flush=True)
                return
            if isinstance(result, Outcome):
                yield result
            else:
                print(result, flush=True)


def saved(path: Path, facts: dict[str, Any], known: Sequence[Costs], outcomes: Sequence[Outcome]) -> None:
    """Write the JSON."""
    content = {"facts": facts, "costs": [asdict(each) for each in known]}
    content["outcomes"] = [asdict(each) for each in outcomes]
    write_atomically(path, json.dumps(content, indent=1).encode())


def show(path: Path) -> None:
    """Print the table of a JSON."""
    content = json.loads(path.read_text())
    print(content["facts"])
    print(table([Costs(**each) for each in content["costs"]], [Outcome(**each) for each in content["outcomes"]]))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path, help=f"of the games' files (*{SUFFIX})")
    add("--play", type=Path, metavar="MODEL", help="a model that plays the games, if there are none")
    add("--play-minutes", type=number(above=0), default=2.0, help="for so long (default: %(default)s)")
    add("--play-device", help="and there (default: the --device)")
    add("--networks", nargs="+", default=list(NETWORKS), metavar="TYPE-BxC[-se]", help="default: a list for 9x9 Go")
    add("--device", default="auto", help="where networks train: auto, cpu, cuda, cuda:1 ... (default: %(default)s)")
    add("--processes", type=whole(), default=1, help="at a time, each on one core (default: %(default)s)")
    add("--steps", type=whole(), default=3000, help="of each training (default: %(default)s)")
    add("--batch-size", type=whole(2), default=256, help="default: %(default)s")
    add("--learning-rate", type=number(above=0), default=2e-3, help="its peak (default: %(default)s)")
    add("--optimizer", choices=("adamw", "muon", "sgd"), default="adamw", help="default: %(default)s")
    add("--seeds", type=whole(0), nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    add("--positions", type=whole(), default=400_000, help="to learn from, at most (default: %(default)s)")
    add("--minutes", type=number(above=0), default=60.0, help="of the whole program (default: %(default)s)")
    add("--evaluation-batch", type=whole(), default=64, help="positions of a timed call on the CPU (default: 64)")
    add("--gpu-batch", type=whole(), default=1024, help="and on the GPU (default: %(default)s)")
    add("--json", type=Path, help="default: FOLDER/trunks.json")
    add("--times", action="store_true", help="only measure the evaluation times")
    add("--show", action="store_true", help="only print the table of the JSON")
    arguments = parser.parse_args()
    arguments.json = arguments.json or arguments.folder / "trunks.json"
    try:
        for name in arguments.networks:
            NetworkSettings(**Candidate(name).settings)
        pick_device(arguments.device)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> None:
    """Play, measure, train, print."""
    arguments = parsed()
    if arguments.show:
        show(arguments.json)
        return
    deadline = time.time() + 60 * arguments.minutes
    if arguments.play:
        play_all(arguments)
    batches, device = read_batches(arguments.folder), pick_device(arguments.device)
    game = load_game(batches[0].game, **batches[0].options)
    candidates = [Candidate(name) for name in arguments.networks]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    facts = {name: getattr(arguments, name) for name in ("steps", "batch_size", "learning_rate", "optimizer")}
    facts |= {"game": f"{game.name} {game.options}", "games": sum(batch.num_games for batch in batches)}
    facts |= {"device": where, "torch": torch.__version__, "evaluation_batch": arguments.evaluation_batch}
    print(facts, flush=True)
    known = costs_of(candidates, game, arguments.evaluation_batch, arguments.device, arguments.gpu_batch)
    saved(arguments.json, facts, known, [])
    print(table(known, []), flush=True)
    if arguments.times:
        return
    plan = Plan(
        folder=arguments.folder,
        device=str(device),
        deadline=deadline,
        **{
            name: getattr(arguments, name)
            for name in ("steps", "batch_size", "learning_rate", "optimizer", "positions")
        },
    )
    outcomes = list[Outcome]()
    for outcome in outcomes_of(candidates, arguments.seeds, plan, arguments.processes):
        outcomes.append(outcome)
        saved(arguments.json, facts, known, outcomes)
        print(
            f"{outcome.name}, seed {outcome.seed}: policy {outcome.policy_loss:.4f}, value {outcome.value_loss:.4f}, "
            f"all losses in training {outcome.train_loss:.4f}; {outcome.seconds:.0f} s",
            flush=True,
        )
        if len(outcomes) % len(candidates) == 0:
            print(table(known, outcomes), flush=True)
    print(f"\n{table(known, outcomes)}", flush=True)


if __name__ == "__main__":
    main()
