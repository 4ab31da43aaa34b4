"""How strong a network is."""
