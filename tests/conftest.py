"""Hypothesis draws the same examples on every run, and never judges by the clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")
