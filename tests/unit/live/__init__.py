"""Tests of what surrounds a live platform."""
