"""Runs and games in a browser: a web application over the files of runs, and a page to play against their models.

It never talks to a Coach. ``run_reader`` reads a run's files, ``run_state`` says how it stands, ``app`` serves both as
JSON with a page, ``play`` keeps the visitors' games, for which ``engine`` thinks in a separate process, ``server``
listens, and ``access`` refuses every request that does not carry the token or was made for another site.
"""
