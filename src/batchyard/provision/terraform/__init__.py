"""Terraform files of a platform on GKE: static modules, and the variables of the platform."""
