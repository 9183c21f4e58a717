"""Summaries of simulations: the observations, figures and tables of one run, and its summary."""
