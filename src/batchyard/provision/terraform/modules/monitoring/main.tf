# The dashboard is drawn in gpu-dashboard.json, which the console can take too: only the cluster's name is put in.
resource "google_monitoring_dashboard" "gpus" {
  dashboard_json = templatefile("${path.module}/gpu-dashboard.json", { cluster = var.cluster })
}
