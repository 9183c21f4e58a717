# Who runs the platform's Terraform in Cloud Build, and what he may do. This is a configuration of its own, with a state of
# its own: build/destroy.yaml takes the platform back, and must not take back who runs it. Apply it once, by hand, before
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

  # What the platform is made of, and nothing beyond. Who makes service accounts and says who may be them can be each of
  # the project's: give the platform a project of its own.
  roles = [
    "roles/artifactregistry.admin",
    "roles/compute.networkAdmin",
    "roles/container.admin",
    "roles/iam.serviceAccountAdmin",
    "roles/iam.serviceAccountUser", # nodes are the service account of nodes
    "roles/logging.logWriter",
    "roles/monitoring.dashboardEditor",
    "roles/serviceusage.serviceUsageAdmin",
  ]

  # The only roles that it may give or take in the project.
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

# Networks are in a role of their own, but reservations are only in one with everything of Compute Engine, and firewall
# rules in one with everything of security.
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

# To give roles is to be able to have them all: so these roles only.
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

# The state, and the sources of a build.
resource "google_storage_bucket_iam_member" "state" {
  bucket = var.state_bucket
  role   = "roles/storage.admin"
  member = google_service_account.build.member
}

# Buckets of teams: who reads and writes them is said there.
resource "google_storage_bucket_iam_member" "buckets" {
  for_each = toset(flatten(values(var.teams)[*].buckets))

  bucket = each.value
  role   = "roles/storage.admin"
  member = google_service_account.build.member
}
