"""Any schema in one canonical form, each engine's words for it, and the reading of replies."""
