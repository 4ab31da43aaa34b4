"""Reports of an invented run, whose metrics follow from the number of the iteration."""

from keima.base.reports.run_reports import (
    EvaluationReport,
    IterationReport,
    LearnerReport,
    ProgressReport,
    SelfPlayReport,
)
from keima.base.reports.worker_status import WorkerStatus
from keima.ppo.reports import EpisodesReport, RoundReport


def worker(number: int = 0, *, activity: str = "playing", error: str = "") -> WorkerStatus:
    return WorkerStatus(
        name=f"local-{number}",
        activity=activity,
        model_version=12,
        games=600,
        games_per_second=6.1,
        evaluations_per_second=5900.0,
        outstanding=20,
        error=error,
    )


def evaluation(version: int, *, solved: bool = True, elo: float | None = None) -> EvaluationReport:
    """``solved``: measured against perfect play."""
    return EvaluationReport(
        model_version=version,
        num_simulations=128,
        search_error=0.5 / version if solved else None,
        search_error_margin=0.012 if solved else None,
        policy_error=0.8 / version if solved else None,
        elo=100.0 * version if elo is None else elo,
        elo_margin=40.0,
        random_not_lost=0.99,
    )


def iteration(
    number: int,
    *,
    loss: float | None = None,
    measured: EvaluationReport | None = None,
    learned: bool = True,
    workers: tuple[WorkerStatus, ...] = (),
    seconds_each: float = 60.0,
) -> IterationReport:
    learner = LearnerReport(
        steps=60,
        samples=15000,
        seconds=20.0,
        samples_per_second=750.0,
        loss=2.0 / number if loss is None else loss,
        policy_loss=1.5 / number,
        value_loss=0.5 / number,
        policy_entropy=1.0,
        grad_norm=0.7,
        learning_rate=1e-3,
        skipped_steps=0,
    )
    return IterationReport(
        iteration=number,
        seconds=seconds_each * number,
        total_games=100 * number,
        total_positions=2300 * number,
        window_games=100 * number,
        window_positions=2300 * number,
        model_version=number,
        self_play=SelfPlayReport(
            games=100,
            positions=2300,
            games_per_second=12.3,
            mean_plies=23.0,
            first_player_wins=0.55,
            draws=0.08,
            resigned=0.0,
            false_resignations=0.0,
            bytes_per_game=300.0,
        ),
        learner=learner if learned else None,
        evaluation=measured,
        workers=workers,
    )


def progress(
    number: int,
    *,
    iterations: int | None = 200,
    seconds_left: float | None = 11800.0,
    workers: tuple[WorkerStatus, ...] = (),
) -> ProgressReport:
    return ProgressReport(
        phase="waiting for games",
        iteration=number,
        iterations=iterations,
        seconds=60.0 * number,
        seconds_left=seconds_left,
        total_games=100 * number + 62,
        games_wanted=100,
        games_here=62,
        games_per_second=12.3,
        evaluations_per_second=11800.0,
        window_positions=2300 * number,
        model_version=number,
        workers=workers,
    )


def ppo_round(number: int) -> RoundReport:
    """Return a round in which one episode ended."""
    return RoundReport(
        round=number,
        steps=4000,
        total_steps=4000 * number,
        episodes_over=number,
        episodes_planned=10,
        world_size=1,
        seconds=2.0 * number,
        steps_per_second=2000.0,
        acting_share=0.5,
        explained_variance=0.25,
        learning={"entropy": 1.0, "policy_loss": 0.1, "value_loss": 0.5, "approx_kl": 0.01},
        episodes=EpisodesReport(count=1, rewards=3.0, steps=500.0, metrics={}),
    )
