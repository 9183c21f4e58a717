# Requests for machines in a window of time. When Google approves a request, it creates a reservation of the same name,
# which only the pools that name it consume.
resource "google_compute_future_reservation" "this" {
  provider = google-beta
  for_each = var.reservations

  name            = each.key
  description     = "For node pools that name it."
  zone            = each.value.zone
  planning_status = each.value.planning_status

  # Calendar mode books accelerators only, and delivers them close together.
  reservation_mode = each.value.accelerator == null ? "DEFAULT" : "CALENDAR"
  deployment_type  = each.value.accelerator == null ? null : "DENSE"

  # Node pools refer to the reservation by this name. Google deletes it when the window ends.
  reservation_name                      = each.key
  specific_reservation_required         = true
  auto_delete_auto_created_reservations = true

  # Google does not delete a submitted request in calendar mode: `terraform destroy` only forgets it.
  deletion_policy = each.value.planning_status == "SUBMITTED" ? "ABANDON" : "DELETE"

  time_window {
    start_time = each.value.start_time
    end_time   = each.value.end_time
  }

  specific_sku_properties {
    total_count = each.value.count

    instance_properties {
      machine_type = each.value.machine_type

      dynamic "guest_accelerators" {
        for_each = each.value.accelerator == null ? [] : [each.value.accelerator]

        content {
          accelerator_type  = guest_accelerators.value.type
          accelerator_count = guest_accelerators.value.count
        }
      }
    }
  }
}
