"""Clocks: of the machine, of an API server, and the event loop's timers."""
