"""What everybody must know of a file of games, without importing the rules of games."""

SUFFIX = ".games"
MAX_BATCH_BYTES = 16 * 2**20  # of the whole file
