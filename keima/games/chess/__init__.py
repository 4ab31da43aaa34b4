"""Chess: rules, notation (FEN, SAN, UCI), PGN files, and players without learning."""
