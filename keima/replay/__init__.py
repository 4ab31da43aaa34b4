"""The replay window: from games to a learner's batches."""
