"""How a simulation went: observations, figures and tables of one run, and its summary."""
