"""The simulated world: virtual time, scenarios, event log, checkers."""
