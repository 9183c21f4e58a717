"""HTTP server: protocol, parser, limits, flow control, and dispatch of requests to the API server."""
