"""A worker of one's own that plays more evenly: it draws its moves more evenly among those that search has looked at.

Copy it into the folder in which you work, as ``evenly.py``, and name its class in the config::

    distributed: {worker_class: evenly.EvenWorker}
"""

from keima import Assignment, Evaluate, Game, ParallelGames, Worker


class EvenWorker(Worker):
    """Its games differ more from each other."""

    def make_self_play(self, game: Game, evaluate: Evaluate, assignment: Assignment) -> ParallelGames:
        """Set up the games that are played side by side, with a higher temperature."""
        search = assignment.search.model_copy(update={"temperature": 1.3, "temperature_final": 0.5})
        return super().make_self_play(game, evaluate, assignment.model_copy(update={"search": search}))
