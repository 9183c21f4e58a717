"""Real time: the kernel on an event loop, the durable store, the server's wire."""
