"""Triggers at work: occasions for which they fired, once each, and times of their schedules that they missed."""
