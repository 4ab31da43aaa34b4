"""What a run leaves for other programs: statistics, TensorBoard events, trackers, model cards."""
