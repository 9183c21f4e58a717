"""The parts of start-time forecasts: expected arrivals, run times, reduced states, calibration by earlier forecasts."""
