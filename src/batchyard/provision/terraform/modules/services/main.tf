locals {
  apis = [
    "artifactregistry.googleapis.com",
    "cloudresourcemanager.googleapis.com", # roles in the project
    "compute.googleapis.com",
    "container.googleapis.com",
    "containerfilesystem.googleapis.com", # image streaming
    "iam.googleapis.com",
    "iamcredentials.googleapis.com", # Workload Identity
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "storage.googleapis.com",
  ]
}

resource "google_project_service" "this" {
  for_each = toset(local.apis)

  project = var.project
  service = each.value

  # Other programs in the project may need the APIs; enabled APIs cost nothing.
  disable_on_destroy = false
}
