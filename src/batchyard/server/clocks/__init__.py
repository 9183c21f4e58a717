"""Clocks and event loops in real time: the machine's clock, an API server's clock, and timers."""
