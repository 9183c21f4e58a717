# Without this account, nodes would use the project's default service account, which may be an editor of the project.
resource "google_service_account" "nodes" {
  account_id   = "${trimsuffix(substr(var.name, 0, 24), "-")}-nodes"
  display_name = "Nodes of ${var.name}"
  description  = "Writes logs and metrics, reads images. Pods are somebody else: see the teams."
}

# Google's role for nodes: logs, metrics and autoscaling events.
resource "google_project_iam_member" "nodes" {
  project = var.project
  role    = "roles/container.defaultNodeServiceAccount"
  member  = google_service_account.nodes.member
}
