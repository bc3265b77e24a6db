"""Mechanics that several passes share."""
