"""The names by which the guide's programs import the games; all they name is elsewhere."""
