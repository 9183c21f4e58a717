output "names" {
  description = "The names of the reservations."
  value       = sort(keys(google_compute_reservation.this))
}
