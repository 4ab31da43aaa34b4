"""Games from other sources: PGN and SGF files, and files of games to start a run with."""
