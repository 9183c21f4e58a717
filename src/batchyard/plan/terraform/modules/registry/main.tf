resource "google_artifact_registry_repository" "this" {
  location      = var.region
  repository_id = var.repository
  description   = "Images of jobs."
  format        = "DOCKER"

  # Tags move on, and what they leave behind is of no use to anybody after a month.
  cleanup_policies {
    id     = "delete-untagged"
    action = "DELETE"

    condition {
      tag_state  = "UNTAGGED"
      older_than = "2592000s" # 30 days
    }
  }
}

resource "google_artifact_registry_repository_iam_member" "reader" {
  location   = google_artifact_registry_repository.this.location
  repository = google_artifact_registry_repository.this.name
  role       = "roles/artifactregistry.reader"
  member     = var.reader
}
