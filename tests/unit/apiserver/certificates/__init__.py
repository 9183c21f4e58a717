"""Tests of CertificateSigningRequests."""
