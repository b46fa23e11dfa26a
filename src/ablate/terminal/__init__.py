"""What is printed: messages that hide nothing, tables, and output whose reader has gone."""
