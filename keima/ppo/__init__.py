"""Learning without search: PPO with an LSTM."""
