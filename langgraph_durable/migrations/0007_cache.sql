-- langgraph_durable 0007: LangGraph's node cache.

CREATE TABLE {schema}.cache (
    namespace  bytea NOT NULL,  -- hash of the namespace's parts, which may be any text
    key        bytea NOT NULL,  -- hash of the key
    type       text NOT NULL,   -- of value, as the serializer named it
    value      bytea NOT NULL,
    expires_at timestamptz,     -- NULL for never
    PRIMARY KEY (namespace, key)
);

CREATE INDEX cache_expires_at_idx ON {schema}.cache (expires_at) WHERE expires_at IS NOT NULL;
