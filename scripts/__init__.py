"""Small programs around a run; each is started as ``python scripts/<name>.py`` and says with ``--help`` what it does."""
