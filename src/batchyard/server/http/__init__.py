"""HTTP: the protocol, its bounds, and how requests are dispatched."""
