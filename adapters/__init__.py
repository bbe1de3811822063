"""Everything that touches the world. Adapters translate; they never import each other (except `wire` and `cli`)."""
