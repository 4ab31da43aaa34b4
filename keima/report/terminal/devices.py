"""A run on named devices as lines: each device's games, when it finishes, and the iteration's results.

The words are those of the guide to chess on several GPUs, and so is what they count: a move is a ply, one player's.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from keima.base.reports import IterationReport, LearnerReport, ProgressReport, SelfPlayReport
from keima.base.text import printable_line
from keima.base.worker_status import WorkerStatus
from keima.report.strength import strength_pairs

RULE = "-" * 70
TRAINING = "training"  # the Coach's phase


class DeviceLines:
    """Prints each event once, as it happens.

    It is made for synchronous runs, in which an iteration's games are shared out before they begin.

    Args:
        titles: by worker, the device on which it plays, such as GPU 0; several workers may share one.
        say: is given one line after the other.
        epochs: how often a new position is learned from, on average.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        titles: Mapping[str, str],
        say: Callable[[str], None],
        *,
        epochs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._titles, self._say, self._epochs, self._clock = dict(titles), say, epochs, clock
        self._devices = tuple(dict.fromkeys(titles.values()))
        self._kind = self._devices[0].split()[0]  # GPU or CPU
        self._received: dict[str, int] = {}  # by worker, before the iteration's games
        self._began: float | None = None  # when the iteration's games began
        self._done: dict[str, None] = {}  # devices that have been reported as done
        self._completed = self._training = False
        self._errors: set[str] = set()

    def progress(self, report: ProgressReport) -> None:
        """Print which devices are done, and the iteration's games when all have arrived."""
        self._report_errors(report.workers)
        if self._began is None and any(worker.outstanding for worker in report.workers):
            self._begin_iteration(report)
        if self._began is not None and not self._completed:
            self._report_done(report, self._clock() - self._began)
        if report.self_play is not None:
            self._print_games(report.self_play, report.window_positions)
        if report.phase == TRAINING:
            self._print_training()

    def iteration(self, report: IterationReport) -> None:
        """Print the iteration's results."""
        self._print_games(report.self_play, report.window_positions)
        if report.learner:
            self._print_training()
        self._say(losses_line(report.learner))
        if report.learner and (spikes := report.learner.spikes):
            figures = {
                "firing_rate": round(spikes.firing_rate, 4),
                "synaptic_operations": round(spikes.synaptic_operations),
            }
            self._say(f"Spikes: {figures}")
        if report.evaluation:
            measured = ", ".join(strength_pairs(report.evaluation)) or "see training_stats.json"
            self._say(f"Strength of model {report.evaluation.model_version}: {measured}")
        self._received = {worker.name: worker.games for worker in report.workers}
        self._began, self._completed, self._training = None, False, False
        self._done.clear()
        self._say("")

    def event(self, text: str) -> None:
        """Print the event."""
        line = printable_line(text)
        self._errors.add(line)
        self._say(line)

    def close(self) -> None:
        """Do nothing: the stream's owner closes it."""

    def _begin_iteration(self, report: ProgressReport) -> None:
        self._began = self._clock()
        for worker in report.workers:
            self._received.setdefault(worker.name, worker.games)
        shares = [
            played + left for played, left in (self._count_games(report.workers, device) for device in self._devices)
        ]
        here = report.games_wanted - sum(shares)
        earlier = f" ({here} of this iteration's {report.games_wanted} are here already)" if here > 0 else ""
        many = "s" if len(shares) > 1 else ""
        self._say(f"=== Iteration {report.iteration} ===")
        self._say(f"Generating {sum(shares)} games...")
        self._say("")
        self._say(f"Generating {sum(shares)} games across {len(shares)} {self._kind}{many}...{earlier}")
        self._say(f"Games per {self._kind}: {shares}")
        self._say(RULE)

    def _count_games(self, workers: Sequence[WorkerStatus], device: str) -> tuple[int, int]:
        """A device's finished and remaining games of the iteration."""
        mine = [worker for worker in workers if self._titles.get(worker.name) == device]
        finished = sum(worker.games - self._received.get(worker.name, 0) + worker.waiting for worker in mine)
        return finished, sum(max(0, worker.outstanding - worker.waiting) for worker in mine)

    def _report_done(self, report: ProgressReport, seconds: float) -> None:
        games = (
            report.self_play.games
            if report.self_play
            else report.games_here + sum(worker.waiting for worker in report.workers)
        )
        for device in self._devices:
            finished, left = self._count_games(report.workers, device)
            if left:
                self._done.pop(device, None)  # it was given another device's games
            elif device not in self._done:
                self._done[device] = None
                total = f"{len(self._done)}/{len(self._devices)} {self._kind}s done"
                progress = f"Progress: {games}/{report.games_wanted} games"
                self._say(f"[{seconds:7.1f}s] {device}: Completed {finished} games | Total: {total} | {progress}")

    def _print_games(self, games: SelfPlayReport, positions: int) -> None:
        if self._completed:
            return
        self._completed = True
        if self._began is not None:
            self._say(RULE)
        self._say(f"Completed {games.games} games in {games.seconds:.1f}s ({games.games_per_second:.1f} games/sec)")
        self._say("")
        self._say(games_line(games))
        self._say("Adding games to replay buffer...")
        self._say(f"Buffer size: {positions}")

    def _print_training(self) -> None:
        if not self._training:
            self._training = True
            self._say(f"Training for {self._epochs:g} epochs...")

    def _report_errors(self, workers: Sequence[WorkerStatus]) -> None:
        for worker in workers:
            line = f"ERROR in {self._titles.get(worker.name, worker.name)}: {printable_line(worker.error)}"
            if worker.error and line not in self._errors:
                self._errors.add(line)
                self._say(line)


def games_line(games: SelfPlayReport) -> str:
    """Statistics of an iteration's games; those that one-player games lack are left out, and their plies include chance
    events.
    """
    if games.score is not None:
        figures = {
            "total_games": games.games,
            "avg_plies": round(games.mean_plies, 1),
            "avg_score": round(games.score.mean, 1),
        }
        return f"Game stats: {figures}"
    figures = {"total_games": games.games, "avg_moves": round(games.mean_plies, 1)}
    if games.first_player_wins is not None and games.draws is not None:
        figures |= {"white_win_rate": round(games.first_player_wins, 2), "draw_rate": round(games.draws, 2)}
    return f"Game stats: {figures}"


def losses_line(learner: LearnerReport | None) -> str:
    """An iteration's losses."""
    if learner is None:
        return "Training losses: none, with too few positions yet or no time left"
    losses = {"total_loss": learner.loss, "policy_loss": learner.policy_loss, "value_loss": learner.value_loss}
    rounded = {name: round(loss, 3) for name, loss in losses.items()}
    return f"Training losses: {rounded | {'entropy': round(learner.policy_entropy, 2)}}"
