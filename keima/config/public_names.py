"""The names of ``import keima``, and the modules that they are imported from on first use."""

NAMES = {  # by module
    "keima.config.schema": ("SearchSettings",),
    "keima.trainers.parallel_zero": ("ParallelZeroTrainer",),
    "keima.cluster.connector": ("SSHConnector",),
    "keima.games": ("load_game",),
    "keima.games.game": ("Game",),
    "keima.api.network": ("Line", "LoadedNetwork", "load_network"),
    "keima.api.playing": ("PlayedGame", "play_game"),
    "keima.api.recorded": ("RecordedGame", "batch_of", "read_games"),
    "keima.trainers.local_run": ("train",),
    "keima.data.records": ("GameBatch", "GameRecord"),
    "keima.evaluation.match": ("Player", "RandomPlayer"),
    "keima.learning.learner": ("Learner",),
    "keima.networks.inference.evaluator": ("Evaluator",),
    "keima.networks.network": ("build_network",),
    "keima.replay.window": ("ReplayWindow",),
    "keima.search.baselines.uct": ("UctPlayer",),
    "keima.self_play.parallel_games": ("SelfPlay",),
}
HOMES = {name: module for module, names in NAMES.items() for name in names}
