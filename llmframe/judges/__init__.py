"""How far an answer can be trusted: agreement, corrected estimates, rankings, calibration.

Everything here reads a finished frame and asks no model.
"""
