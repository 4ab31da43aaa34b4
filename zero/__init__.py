"""The names by which the guide's programs import the games; all they name is elsewhere."""

import configs  # noqa: F401 - says so where Python is too old
