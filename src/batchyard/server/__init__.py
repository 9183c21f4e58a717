"""Server processes: the embedded platform, the operator, their HTTP server, clocks, logs, and the local node."""
