"""Output: messages with control characters escaped, tables, and closed pipes."""
