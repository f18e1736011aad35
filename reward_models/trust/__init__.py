"""Can a reward model be trusted? Calibration, agreement with people."""
