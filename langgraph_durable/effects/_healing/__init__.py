"""Answers to tool calls that an abandoned step left without one."""
