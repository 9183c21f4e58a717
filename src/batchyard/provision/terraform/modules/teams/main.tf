locals {
  # One row for each role and each bucket of a team.
  roles = {
    for row in flatten([for name, team in var.teams : [for role in team.roles : { team = name, role = role }]]) :
    "${row.team} ${row.role}" => row
  }
  buckets = {
    for row in flatten([for name, team in var.teams : [for bucket in team.buckets : { team = name, bucket = bucket }]]) :
    "${row.team} ${row.bucket}" => row
  }
}

resource "google_service_account" "this" {
  for_each = var.teams

  account_id   = each.value.account
  display_name = "Pods of ${each.key}"
  description  = "What ${each.value.namespace}/${each.value.service_account} acts as."
}

# Workload Identity: pods with this ServiceAccount in this namespace act as the Google service account, without keys.
resource "google_service_account_iam_member" "workload_identity" {
  for_each = var.teams

  service_account_id = google_service_account.this[each.key].name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${var.workload_pool}[${each.value.namespace}/${each.value.service_account}]"
}

# The only roles of the team's Google service account in the project.
resource "google_project_iam_member" "roles" {
  for_each = local.roles

  project = var.project
  role    = each.value.role
  member  = google_service_account.this[each.value.team].member
}

resource "google_storage_bucket_iam_member" "buckets" {
  for_each = local.buckets

  bucket = each.value.bucket
  role   = "roles/storage.objectUser"
  member = google_service_account.this[each.value.team].member
}
