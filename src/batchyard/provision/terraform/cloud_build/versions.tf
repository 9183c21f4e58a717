# The tested versions. The provider is pinned: before you raise its version, read `terraform plan`.
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
