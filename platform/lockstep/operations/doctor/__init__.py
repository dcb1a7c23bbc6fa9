"""Diagnoses of an installation."""
