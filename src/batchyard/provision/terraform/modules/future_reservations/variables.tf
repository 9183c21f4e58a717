variable "reservations" {
  description = "Machines to book, by the reservation's name, as described for the root variable future_reservations."
  type = map(object({
    machine_type    = string
    zone            = string
    count           = number
    start_time      = string
    end_time        = string
    planning_status = string
    accelerator     = object({ type = string, count = number })
  }))
}
