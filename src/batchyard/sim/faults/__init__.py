"""Fault injection for simulations: the faults, and their execution."""
