"""API clients: in process and over HTTP, with informers, leader election, garbage collection and a write queue."""
