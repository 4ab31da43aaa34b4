"""What a visitor of ``/play`` may ask of the server."""

USUAL_SECONDS = 2.0  # for a move, proposed: beside a training run, simulations take long
MOST_SIMULATIONS = 10_000
MOST_SECONDS = 30.0  # for a move, whatever the simulations
MOST_GAMES = 64  # in progress, one for each visitor; the one that was longest untouched makes room
MOST_ENGINES = 2  # processes, one for each model in use
MOST_WAITING = 8  # questions at once, which are answered one after the other
MOST_COMMAND_BYTES = 1000
