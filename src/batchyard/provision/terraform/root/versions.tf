# The tested versions. The provider is pinned: before you raise its version, read `terraform plan`.
terraform {
  required_version = ">= 1.9.0, < 2.0.0"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "8.7.0"
    }

    # For future reservations, which the provider google lacks.
    google-beta = {
      source  = "hashicorp/google-beta"
      version = "8.7.0"
    }
  }
}

# All resources that support labels have these labels. The nodes of a cluster and their disks get the cluster's labels.
provider "google" {
  project        = var.project
  region         = var.region
  default_labels = var.labels
}

provider "google-beta" {
  project = var.project
  region  = var.region
}
