"""Mutation testing of changed lines: break one operator at a time, and see whether a test fails."""
