"""The shipped specs: one YAML file a decode algorithm, the schema, and policies."""
