"""The seams between decisions and the world: small protocols, implemented live and simulated."""
