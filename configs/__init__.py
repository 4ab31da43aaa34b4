"""Settings: what a run is told, read from YAML and checked before anything starts."""
