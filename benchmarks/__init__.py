"""Programs that measure: one question each, the alternatives side by side in one run."""
