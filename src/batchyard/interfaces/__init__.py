"""Interfaces between decisions and the outside world: small protocols, implemented live and simulated."""
