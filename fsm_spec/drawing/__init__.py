"""Tables drawn for a reader: state diagrams, block masks and text."""
