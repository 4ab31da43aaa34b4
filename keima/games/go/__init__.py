"""Go: rules, scoring, handicap and set-up positions, SGF files, and random playouts."""
