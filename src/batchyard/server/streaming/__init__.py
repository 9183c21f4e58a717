"""Upgraded HTTP connections: exec, attach and port-forward over WebSocket and SPDY."""
