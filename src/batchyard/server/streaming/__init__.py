"""Connections that leave HTTP: exec, attach and port-forward over WebSocket and SPDY."""
