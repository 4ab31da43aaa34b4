"""Learning: search, self-play, game records, the replay window, networks, the learner and its coach."""

import configs  # noqa: F401 - says so where Python is too old
