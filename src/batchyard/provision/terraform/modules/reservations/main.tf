# Only pools that name a reservation consume it (a specific reservation).
resource "google_compute_reservation" "this" {
  for_each = var.reservations

  name                          = each.key
  description                   = "For node pools that name it."
  zone                          = each.value.zone
  specific_reservation_required = true

  specific_reservation {
    count = each.value.count

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
