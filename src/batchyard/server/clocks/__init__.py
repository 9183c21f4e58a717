"""Clocks: the machine's clock, the clock of an API server, and timers on the event loop."""
