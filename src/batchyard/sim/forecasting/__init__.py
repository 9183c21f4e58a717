"""Models behind forecasts: arrivals, run times, reduced states, and calibration by earlier forecasts."""
