"""Tree search for many games at once, over flat arrays, against any evaluator."""
