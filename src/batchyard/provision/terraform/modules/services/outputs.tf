output "apis" {
  description = "The enabled APIs."
  value       = sort(keys(google_project_service.this))
}
