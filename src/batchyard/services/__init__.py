"""Services: cluster IPs and node ports, and the controllers of Endpoints and EndpointSlices."""
