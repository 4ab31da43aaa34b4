"""The facts about a file of games that every process needs, without importing the rules of games."""

SUFFIX = ".games"
MAX_BATCH_BYTES = 16 * 2**20  # of the whole file
