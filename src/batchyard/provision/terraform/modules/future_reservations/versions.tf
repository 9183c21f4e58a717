terraform {
  required_version = ">= 1.9.0"

  required_providers {
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 8.7.0, < 9.0.0"
    }
  }
}
