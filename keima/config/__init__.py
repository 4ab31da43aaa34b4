"""Settings of a run, read from YAML and validated before anything starts."""
