resource "google_artifact_registry_repository" "this" {
  for_each = var.repositories

  location      = each.value
  repository_id = each.key
  description   = "Images of jobs."
  format        = "DOCKER"

  # Images without a tag, such as those whose tag was moved to another image, are deleted after a month.
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
  for_each = var.repositories

  location   = google_artifact_registry_repository.this[each.key].location
  repository = google_artifact_registry_repository.this[each.key].name
  role       = "roles/artifactregistry.reader"
  member     = var.reader
}
