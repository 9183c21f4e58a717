# The service account that runs the platform's Terraform in Cloud Build, and its roles. This configuration has a
# separate state, so that build/destroy.yaml does not delete the account that runs it. Apply it once, by hand, before
# the first build:
#
#     terraform -chdir=terraform/build init
#     terraform -chdir=terraform/build apply

locals {
  apis = [
    "cloudbuild.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "iam.googleapis.com",
    "serviceusage.googleapis.com",
    "storage.googleapis.com",
  ]

  # The roles for the platform's resources. An account that creates service accounts and grants their use can act as any
  # service account of the project: use a separate project for the platform.
  roles = [
    "roles/artifactregistry.admin",
    "roles/compute.networkAdmin",
    "roles/container.admin",
    "roles/iam.serviceAccountAdmin",
    "roles/iam.serviceAccountUser", # to run nodes as the nodes' service account
    "roles/logging.logWriter",
    "roles/monitoring.dashboardEditor",
    "roles/serviceusage.serviceUsageAdmin",
  ]

  # The only roles that the account may grant or revoke in the project.
  granted = sort(distinct(concat(
    ["roles/container.defaultNodeServiceAccount"],
    flatten(values(var.teams)[*].roles),
  )))
}

resource "google_project_service" "this" {
  for_each = toset(local.apis)

  project            = var.project
  service            = each.value
  disable_on_destroy = false
}

resource "google_service_account" "build" {
  account_id   = "${trimsuffix(substr(var.name, 0, 24), "-")}-build"
  display_name = "Cloud Build of ${var.name}"
  description  = "Creates and destroys the platform."

  depends_on = [google_project_service.this]
}

resource "google_project_iam_member" "build" {
  for_each = toset(local.roles)

  project = var.project
  role    = each.value
  member  = google_service_account.build.member
}

# Google's predefined roles for reservations and firewall rules include many other permissions, so this role is custom.
resource "google_project_iam_custom_role" "reservations" {
  role_id     = "${replace(var.name, "-", "_")}_reservations"
  title       = "Reservations of ${var.name}"
  description = "Makes and deletes reservations of machines, and the firewall rule of webhooks."
  permissions = [
    "compute.firewalls.create",
    "compute.firewalls.delete",
    "compute.firewalls.get",
    "compute.firewalls.list",
    "compute.firewalls.update",
    "compute.futureReservations.create",
    "compute.futureReservations.delete",
    "compute.futureReservations.get",
    "compute.futureReservations.list",
    "compute.futureReservations.update",
    "compute.networks.updatePolicy",
    "compute.reservations.create",
    "compute.reservations.delete",
    "compute.reservations.get",
    "compute.reservations.list",
    "compute.reservations.resize",
    "compute.reservations.update",
  ]
}

resource "google_project_iam_member" "reservations" {
  project = var.project
  role    = google_project_iam_custom_role.reservations.name
  member  = google_service_account.build.member
}

# An account that may grant any role can give itself every role, so this condition limits the roles.
resource "google_project_iam_member" "grants" {
  project = var.project
  role    = "roles/resourcemanager.projectIamAdmin"
  member  = google_service_account.build.member

  condition {
    title       = "roles of the platform"
    description = "Gives and takes the roles of nodes and teams, and no others."
    expression = format(
      "api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([%s])",
      join(", ", [for role in local.granted : "'${role}'"]),
    )
  }
}

# The bucket with Terraform's state and the sources of builds.
resource "google_storage_bucket_iam_member" "state" {
  bucket = var.state_bucket
  role   = "roles/storage.admin"
  member = google_service_account.build.member
}

# The teams' buckets, whose IAM policies Terraform changes.
resource "google_storage_bucket_iam_member" "buckets" {
  for_each = toset(flatten(values(var.teams)[*].buckets))

  bucket = each.value
  role   = "roles/storage.admin"
  member = google_service_account.build.member
}
