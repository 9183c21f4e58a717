"""CertificateSigningRequests: the API resource, its validation, and the controller that signs and removes them."""
