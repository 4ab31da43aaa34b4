"""Games against oneself, many side by side."""
