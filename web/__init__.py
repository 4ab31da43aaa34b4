"""Runs in a browser: a read-only web application over the files of one or several runs.

It never talks to a Coach. ``run_reader`` reads a run's files, ``app`` serves them as JSON with a page, and ``access``
refuses every request that does not carry the token or was made for another site.
"""
