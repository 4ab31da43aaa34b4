"""What PPO acts in: trading markets and memory tasks."""
