"""Connect Four: rules and an exact solver."""
