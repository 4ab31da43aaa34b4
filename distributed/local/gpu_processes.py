"""How many worker processes keep a GPU busy: by its memory, and by a short measurement in a process of its own.

A worker process leaves its GPU idle while it searches. If it waits for the GPU during a quarter of its time, four
processes can keep the GPU busy, and one more prepares positions meanwhile.
"""

import math
import os
from dataclasses import dataclass

from configs.schema import Settings
from games import load_game
from training.common.processes import Connection, pipe, start_process
from training.common.signals import leave_to_parent
from training.networks.evaluator import Evaluator, device_memory, use_threads
from training.networks.network import build_network
from training.self_play.tuning import AUTO_SIZES, device_share, known_parallel_games

PRELOADED = "distributed.local.preloaded"  # by the server of processes
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
FEWEST_PER_GPU = 2  # one prepares positions while those of another are evaluated
MOST_PER_GPU = 64
CUDA_BYTES = 600 * 2**20  # of a process's libraries and code on a GPU, which PyTorch does not count
SHARE_OF_MEMORY = 0.5  # for workers, because the learner needs some, and its batch may be large
PATIENCE = 600.0  # seconds for the measurement: the search may have to be compiled first


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """One worker process's use of a GPU."""

    share: float  # of its time in which it waits for the GPU, in (0, 1]
    bytes: int  # of the GPU's memory that it takes
    free: int  # bytes of the GPU's memory before it took any


def processes_for(use: GpuUse) -> int:
    """Return how many such processes keep a GPU busy and fit its memory."""
    busy = math.ceil(1 / max(use.share, 1e-3)) + 1
    fit = int(SHARE_OF_MEMORY * use.free) // max(1, use.bytes)
    return max(1, min(max(FEWEST_PER_GPU, busy), fit, MOST_PER_GPU))


def measured_processes(settings: Settings, gpu: str) -> tuple[int, str]:
    """Return how many processes keep the GPU with this name busy, and a sentence about it."""
    use, problem = measure(settings, gpu)
    if use is None:
        return (
            FEWEST_PER_GPU,
            f"{FEWEST_PER_GPU} workers play on each GPU: the speed of one cannot be measured ({problem})",
        )
    count = processes_for(use)
    return count, (
        f"{count} workers can play on each GPU: one waits for it during {use.share:.0%} of its time, and takes "
        f"{use.bytes / 1e9:.1f} GB of {use.free / 1e9:.0f} GB free"
    )


def measure(settings: Settings, gpu: str, *, seconds: float = PATIENCE) -> tuple[GpuUse | None, str]:
    """Return how a worker process uses the GPU with this name, or None and why that cannot be measured.

    Args:
        settings: the run's.
        gpu: its CUDA_VISIBLE_DEVICES; "" measures the processor.
        seconds: the time limit.
    """
    answers, end = pipe()
    arguments = (settings.model_dump(mode="json"), gpu, end)
    process = start_process(measure_here, arguments, preloaded=PRELOADED, name="gpu-use")
    end.close()
    try:
        if not answers.poll(seconds):
            return None, f"no answer within {seconds:.0f} s"
        answer = answers.recv()
        return (answer, "") if isinstance(answer, GpuUse) else (None, str(answer))
    except EOFError:
        return None, f"the process ended with exit code {process.exitcode}"
    finally:
        answers.close()
        process.kill()
        process.join()


def measure_here(document: dict[str, object], gpu: str, end: Connection) -> None:
    """Send how this process uses the GPU, or why it cannot."""
    leave_to_parent()
    os.environ[CUDA_VISIBLE_DEVICES] = gpu
    use_threads(1)
    try:
        end.send(gpu_use(Settings.model_validate(document), device="cuda" if gpu else "cpu"))
    except Exception as error:
        end.send(f"{type(error).__name__}: {error}")


def gpu_use(settings: Settings, *, device: str) -> GpuUse:
    """Measure self-play of a new network on a device, as a worker would play.

    Raises:
        ValueError: there is no such device.
        RuntimeError: its memory is too small.
    """
    free, _ = device_memory(device)
    game = load_game(settings.game.name, **settings.game.options)
    network = build_network(game, **settings.network.arguments()).eval()
    side_by_side = settings.self_play.parallel_games
    most = max(AUTO_SIZES) if side_by_side == "auto" else side_by_side
    evaluator = Evaluator(network, game, device=device, max_batch=most * settings.search.leaves_per_tree)
    if side_by_side == "auto":
        name = f"{settings.network.arguments()} {evaluator.describe()}"
        side_by_side, _ = known_parallel_games(game, evaluator, settings.search, network=name)
    share = device_share(game, evaluator, settings.search, side_by_side)
    _, taken = device_memory(device)
    return GpuUse(share=share, bytes=taken + CUDA_BYTES, free=free)
