"""The API without sockets: requests in, responses out."""
