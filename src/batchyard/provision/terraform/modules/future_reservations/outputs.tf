output "planning_status" {
  description = "By future reservation: DRAFT or SUBMITTED."
  value       = { for name, reservation in google_compute_future_reservation.this : name => reservation.planning_status }
}
