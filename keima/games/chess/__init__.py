"""Chess: rules, notation (FEN, SAN, UCI), PGN files, and players that have learned nothing."""
