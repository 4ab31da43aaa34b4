"""Tree search in many games at once, over flat arrays, with any evaluator."""
