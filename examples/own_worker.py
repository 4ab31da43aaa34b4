"""A worker of one's own: a class that plays differently. It plays an iteration here.

In a config: ``distributed: {worker_class: own_worker.EvenWorker}``, with this file in the folder in which you work.
"""

import keima


class EvenWorker(keima.Worker):
    """Draws its moves more evenly among those that search has looked at, so that its games differ more."""

    def make_self_play(
        self, game: keima.Game, evaluate: keima.Evaluate, assignment: keima.Assignment
    ) -> keima.ParallelGames:
        """Set up the games that are played side by side, with a higher temperature."""
        search = assignment.search.model_copy(update={"temperature": 1.3, "temperature_final": 0.5})
        return super().make_self_play(game, evaluate, assignment.model_copy(update={"search": search}))


if __name__ == "__main__":
    own = {"distributed.worker_class": "own_worker.EvenWorker", "run.iterations": 1, "evaluation.every": 0}
    report = keima.train("tic_tac_toe", run_dir="runs/own-worker", overrides=own)
    print(f"{report.total_games:,} games are in runs/own-worker")
