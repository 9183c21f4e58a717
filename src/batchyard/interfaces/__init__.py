"""Protocols between controllers and their environment, implemented by the live platform and the simulator."""
