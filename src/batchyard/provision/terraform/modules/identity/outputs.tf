output "nodes_email" {
  description = "The email address of the nodes' service account; available once its role is granted."
  value       = google_service_account.nodes.email
  depends_on  = [google_project_iam_member.nodes]
}

output "nodes_member" {
  description = "The nodes' service account in the form of IAM policies (serviceAccount:EMAIL)."
  value       = google_service_account.nodes.member
}
