"""OpenSpiel's games, asked through its Python package; slower than compiled rules, and there are dozens of them."""
