output "accounts" {
  description = "By team: the email of its Google service account, for the annotation iam.gke.io/gcp-service-account."
  value       = { for name, account in google_service_account.this : name => account.email }
}
