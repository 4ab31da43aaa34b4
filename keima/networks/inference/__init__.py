"""Evaluating a network: the evaluator that search calls, on CPUs and, by captured graphs, on GPUs."""
