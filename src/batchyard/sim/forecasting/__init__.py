"""The inputs of forecasts: arrivals, run times, and calibration."""
