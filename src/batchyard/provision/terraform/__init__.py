"""The Terraform of a platform on GKE: modules that are the same for all, and the figures of this one."""
