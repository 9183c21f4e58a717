# The versions that this was checked against. The provider is pinned; raise it on purpose, and read `terraform plan`.
terraform {
  required_version = ">= 1.9.0, < 2.0.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "8.7.0"
    }
  }
}

provider "google" {
  project = var.project
}
