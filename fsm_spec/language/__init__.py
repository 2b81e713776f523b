"""What a spec's file says: its source, models, expressions, pieces and names."""
