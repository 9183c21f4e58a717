"""What forecasts rest on: arrivals, run times, and their calibration."""
