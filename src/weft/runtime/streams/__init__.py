"""The text of answers while they are written, and those who follow it."""
