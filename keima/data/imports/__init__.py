"""Games that other programs or people played: PGN and SGF files, and files of games to start a run with."""
