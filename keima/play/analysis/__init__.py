"""KataGo's parallel analysis protocol: queries and results as lines of JSON."""
