"""Clients of an API server: in process, over HTTP, and combined with the containers of this machine."""
