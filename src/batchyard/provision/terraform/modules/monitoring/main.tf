# gpu-dashboard.json is in the format of the Cloud Monitoring console, with the cluster's name as the only variable.
resource "google_monitoring_dashboard" "gpus" {
  dashboard_json = templatefile("${path.module}/gpu-dashboard.json", { cluster = var.cluster })
}
