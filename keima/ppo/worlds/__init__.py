"""PPO's environments: trading markets and memory tasks."""
