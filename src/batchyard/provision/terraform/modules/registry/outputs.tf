output "urls" {
  description = "By repository: the prefix of its image names."
  value = {
    for name, repository in google_artifact_registry_repository.this :
    name => "${repository.location}-docker.pkg.dev/${repository.project}/${repository.repository_id}"
  }
}
