"""HTTP server: protocol, parser, limits, flow control, and the dispatch of requests to the API server."""
