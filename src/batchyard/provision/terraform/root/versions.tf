# The versions that this was checked against. The provider is pinned; raise it on purpose, and read `terraform plan`.
terraform {
  required_version = ">= 1.9.0, < 2.0.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "8.7.0"
    }

    # For future reservations, which the other lacks.
    google-beta = {
      source  = "hashicorp/google-beta"
      version = "8.7.0"
    }
  }
}

# Labels are of everything that can have some; those of a cluster go on to its nodes and their disks.
provider "google" {
  project        = var.project
  region         = var.region
  default_labels = var.labels
}

provider "google-beta" {
  project = var.project
  region  = var.region
}
