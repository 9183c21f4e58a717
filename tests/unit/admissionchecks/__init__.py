"""Unit tests of batchyard.admissionchecks."""
