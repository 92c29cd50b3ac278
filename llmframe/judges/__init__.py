"""How far an answer can be trusted: agreement, corrected estimates, rankings, calibration, audits.

All but `audit` read a finished frame and ask no model.
"""
