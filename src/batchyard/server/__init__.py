"""Server processes: the embedded platform, the operator, their HTTP server, clocks, logs, and this machine as node."""
