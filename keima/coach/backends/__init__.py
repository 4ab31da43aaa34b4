"""The Coach's view of its workers, and what all backends share: assignments, and games in folders."""
